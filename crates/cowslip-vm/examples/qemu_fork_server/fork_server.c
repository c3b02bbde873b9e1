/* A fork server for AFL++ inside of QEMU, for whole systems, as TriforceAFL's: the machine runs up to an address, and each test
   case is a fork from there.

     cc -shared -fPIC -O2 fork_server.c -o fork_server.so
     afl-fuzz … -- qemu-system-x86_64 … -plugin ./fork_server.so,start=0x100100,done=0x100200,crash=0x100300,input=0x300000

   At `start` a test case is written to the guest's physical memory at `input`: its length in four bytes, and its content. A case
   ends at `done`, or at `crash`, by a signal. Without a fuzzer standard input is the only case. In a fork only the virtual
   processor's thread lives on: on its way the guest may use memory, but no device. One processor. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

/* The part of QEMU's interface for plugins, version 1, that is used here (docs/devel/tcg-plugins of QEMU), and functions of its own
   that a QEMU with modules exports. */
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { WITHOUT_REGISTERS };
typedef void executed(unsigned processor, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t plugin, void (*translated)(uint64_t, struct qemu_plugin_tb *));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *instruction);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block, executed *, int registers, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, executed *, int registers, void *data);
struct RAMBlock;
void cpu_physical_memory_rw(uint64_t address, void *bytes, uint64_t length, bool is_write);
int qemu_ram_foreach_block(int (*each)(struct RAMBlock *, void *), void *data);
void *qemu_ram_get_host_addr(struct RAMBlock *block);
uint64_t qemu_ram_get_max_length(struct RAMBlock *block);

int qemu_plugin_version = 1;

/* AFL's descriptors and the length of its map of edges. */
enum { ASKED = 198, ANSWERED = 199, MAP_BYTES = 1 << 16 };

static struct { const char *name; uint64_t value; } addresses[] = {{"start"}, {"done"}, {"crash"}, {"input"}};
enum { START, DONE, CRASH, INPUT, ADDRESSES };

static unsigned char unused[MAP_BYTES], *map = unused;

static void count_edge(unsigned processor, void *address) {
    static uintptr_t before;
    uintptr_t place = ((uintptr_t)address >> 4 ^ (uintptr_t)address << 8) % MAP_BYTES;
    map[place ^ before]++;
    before = place >> 1;
}

/* QEMU keeps the guest's memory from its children. */
static int inherit(struct RAMBlock *block, void *data) {
    return madvise(qemu_ram_get_host_addr(block), qemu_ram_get_max_length(block), MADV_DOFORK);
}

static void give_case(void) {
    static unsigned char message[4 + (64 << 10)];
    lseek(STDIN_FILENO, 0, SEEK_SET);
    uint32_t length = 0;
    ssize_t read_bytes;
    while ((read_bytes = read(STDIN_FILENO, message + 4 + length, sizeof message - 4 - length)) > 0)
        length += read_bytes;
    memcpy(message, &length, 4);
    cpu_physical_memory_rw(addresses[INPUT].value, message, 4 + length, true);
}

static void serve(unsigned processor, void *data) {
    static bool has_begun;
    if (has_begun)
        _exit(0);
    has_begun = true;
    uint32_t word = 0;
    if (write(ANSWERED, &word, 4) != 4) {
        give_case();
        return;
    }
    if (qemu_ram_foreach_block(inherit, NULL)) {
        perror("fork_server: madvise");
        _exit(1);
    }
    while (read(ASKED, &word, 4) == 4) {
        pid_t child = fork();
        if (child == 0) {
            close(ASKED);
            close(ANSWERED);
            give_case();
            return;
        }
        int status;
        if (child < 0 || write(ANSWERED, &child, 4) != 4 || waitpid(child, &status, 0) < 0 ||
            write(ANSWERED, &status, 4) != 4)
            break;
    }
    _exit(0);
}

static void end_well(unsigned processor, void *data) { _exit(0); }

static void end_badly(unsigned processor, void *data) {
    signal(SIGABRT, SIG_DFL);
    abort();
}

static void look_at(uint64_t plugin, struct qemu_plugin_tb *block) {
    executed *const ends[] = {serve, end_well, end_badly};
    uintptr_t address = qemu_plugin_tb_vaddr(block);
    qemu_plugin_register_vcpu_tb_exec_cb(block, count_edge, WITHOUT_REGISTERS, (void *)address);
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        for (int end = START; end <= CRASH; end++)
            if (qemu_plugin_insn_vaddr(instruction) == addresses[end].value)
                qemu_plugin_register_vcpu_insn_exec_cb(instruction, ends[end], WITHOUT_REGISTERS, NULL);
    }
}

int qemu_plugin_install(uint64_t plugin, const void *qemu, int count, char **arguments) {
    for (int i = 0; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        for (int name = 0; value && name < ADDRESSES; name++)
            if (!strncmp(arguments[i], addresses[name].name, value - arguments[i]))
                addresses[name].value = strtoull(value + 1, NULL, 0);
    }
    for (int name = 0; name < ADDRESSES; name++)
        if (!addresses[name].value) {
            fprintf(stderr, "fork_server: an address is missing: %s=0x…\n", addresses[name].name);
            return -1;
        }
    const char *shared = getenv("__AFL_SHM_ID");
    if (shared && (map = shmat(atoi(shared), NULL, 0)) == (void *)-1) {
        perror("fork_server: shmat");
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(plugin, look_at);
    return 0;
}
