/* A child gives up rights in the way that argv[1] names and then does all that a hostile one can, to see what its parent
 * writes later: it counts the descriptors that it has, ends the mappings that count it as a reader, and makes the mappings of
 * files longer. Natively it sees nothing. argv[2] names what is special about the parent. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { BYTES = 32 << 20, PAGE = 4096, NOBODY = 65534, MOST = 256, ROUNDS = 3, POLLS = 1000 };
static const size_t REACH = 96 << 20;

static void check(long answer, const char *what) {
    if (answer < 0) {
        printf("%s: %s\n", what, strerror(errno));
        fflush(stdout);
        _exit(1);
    }
}

static char *new_memory(void) {
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory == MAP_FAILED ? -1 : 0, "mmap");
    return memory;
}

static void write_all(char *memory, uint64_t word) {
    for (size_t at = 0; at < BYTES; at += PAGE) memcpy(memory + at, &word, sizeof word);
}

/* A call that no library sees. */
static long kernel(long number, long a, long b, long c, long d) {
    long answer;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return answer;
}

static struct mapping { char *start; size_t len; } mappings[MOST];
static int count;

/* Makes all of a file visible that one of its mappings shows a part of. Reads and closes the list of them. */
static void look_at_mappings(FILE *file) {
    static char lines[MOST][512];
    while (count < MOST && fgets(lines[count], sizeof lines[0], file)) count++;
    fclose(file);
    int found = 0;
    for (int i = 0; i < count; i++) {
        unsigned long start, end, inode;
        char rights[5], path[256] = "";
        if (sscanf(lines[i], "%lx-%lx %4s %*x %*s %lu %255[^\n]", &start, &end, rights, &inode, path) < 4 || !inode) continue;
        if (strstr(path, "readers") || strstr(path, "users")) {
            kernel(SYS_munmap, (long)start, (long)(end - start), 0, 0);
            continue;
        }
        /* The library of this process writes its counters there. */
        if (!strstr(path, "(deleted)") || strstr(path, "status")) continue;
        size_t len = end - start;
        long longer = kernel(SYS_mremap, (long)start, (long)len, (long)(len + REACH), MREMAP_MAYMOVE);
        if (longer > 0) mappings[found++] = (struct mapping){(char *)longer, len + REACH};
    }
    count = found;
}

static int sees(uint64_t word) {
    static char page[PAGE];
    int seen = 0;
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < mappings[i].len; at += PAGE) {
            struct iovec to = {page, PAGE}, from = {mappings[i].start + at, PAGE};
            if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == PAGE) seen |= !memcmp(page, &word, sizeof word);
        }
    return seen;
}

static void filter_calls(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {1, &allow};
    check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter), "seccomp");
}

static void change(const char *how) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    if (!strcmp(how, "users")) {
        check(setgroups(0, NULL), "setgroups");
        check(setgid(NOBODY), "setgid");
        check(setuid(NOBODY), "setuid");
    } else if (!strcmp(how, "users by number")) {
        check(syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY), "setresgid");
        check(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY), "setresuid");
    } else if (!strcmp(how, "file user by number")) {
        syscall(SYS_setfsgid, NOBODY);
        syscall(SYS_setfsuid, NOBODY);
        check(syscall(SYS_setfsuid, NOBODY) == NOBODY ? 0 : -1, "setfsuid");
    } else if (!strcmp(how, "effective user")) {
        check(seteuid(NOBODY), "seteuid");
    } else if (!strcmp(how, "capabilities")) {
        check(syscall(SYS_capset, &header, none), "capset");
    } else if (!strcmp(how, "no new privileges")) {
        check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl");
    } else if (!strcmp(how, "filter")) {
        filter_calls();
    } else if (!strcmp(how, "no new privileges, then a filter")) {
        check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl");
        filter_calls();
    } else if (!strcmp(how, "user namespace")) {
        check(unshare(CLONE_NEWUSER), "unshare");
    } else if (!strcmp(how, "process namespace")) {
        check(unshare(CLONE_NEWPID), "unshare");
    }
}

static char *memory;
static ucontext_t parent, beside;

static void leave_in_part(void) {
    check(madvise(memory, 512 << 10, MADV_DONTFORK), "madvise");
}

static void leave(void) {
    check(mlock(memory, BYTES), "mlock");
}

/* Calls what has memory leave an arena, on a stack in this memory, so that it cannot be copied. */
static void on_stack(void (*act)(void)) {
    getcontext(&beside);
    beside.uc_stack.ss_sp = memory + (512 << 10);
    beside.uc_stack.ss_size = 64 << 10;
    beside.uc_link = &parent;
    makecontext(&beside, act, 0);
    swapcontext(&parent, &beside);
    memset(memory + (512 << 10), 0, 64 << 10);
}

static void use_up_descriptors(void) {
    struct rlimit limit = {1000, 1000};
    check(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
    while (dup(1) >= 0) {}
}

/* In the child: the kernel refuses it, as a part is in use. */
static void map_where_it_may_not(void) {
    size_t half = BYTES / 2;
    check(munmap(memory, half), "munmap");
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (mmap(memory, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED) puts("it replaced memory");
}

/* As servers do before they give up rights: there is no /proc. */
static void change_root(void) {
    char folder[] = "/tmp/border-XXXXXX";
    check(mkdtemp(folder) ? 0 : -1, "mkdtemp");
    check(chdir(folder), "chdir");
    check(rmdir(folder), "rmdir");
    check(chroot("."), "chroot");
}

/* Writes to memory that is not this program's. */
static void write_unmapped(void) {
    size_t half = BYTES / 2;
    if (kernel(SYS_mprotect, (long)memory, (long)half, PROT_READ | PROT_WRITE, 0)) return;
    memset(memory, 99, half);
}

/* True while a part of the memory is mapped privately from a file. */
static int is_frozen(const char *memory) {
    unsigned long start, end, inode;
    char line[512], rights[5];
    int frozen = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    check(file ? 0 : -1, "open maps");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%lx-%lx %4s %*x %*s %lu", &start, &end, rights, &inode) == 4 && inode && rights[3] == 'p')
            frozen |= start < (unsigned long)memory + BYTES && end > (unsigned long)memory;
    fclose(file);
    return frozen;
}

int main(int count_of, char **arguments) {
    int ask[2], answer[2], descriptors = 0;
    uint64_t word = 7;
    char said = 0;
    const char *special = count_of > 2 ? arguments[2] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    memory = new_memory();
    if (!strcmp(special, "a part left")) on_stack(leave_in_part);
    if (!strcmp(special, "all left")) on_stack(leave);
    write_all(memory, word);
    check(pipe(ask), "pipe");
    check(pipe(answer), "pipe");
    int is_cloned = !strcmp(arguments[1], "user namespace of a clone");
    pid_t child = is_cloned ? syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) : fork();
    check(child, "fork");
    if (child == 0) {
        close(ask[1]);
        FILE *maps = fopen("/proc/self/maps", "r");
        check(maps ? 0 : -1, "open maps");
        if (!strcmp(special, "a refused mapping")) map_where_it_may_not();
        if (!strcmp(special, "another root")) change_root();
        change(arguments[1]);
        if (!strcmp(special, "a refused mapping")) write_unmapped();
        for (int fd = 3; fd < 4096; fd++) descriptors += kernel(SYS_fcntl, fd, F_GETFD, 0, 0) >= 0;
        printf("descriptors: %d\n", descriptors);
        look_at_mappings(maps);
        check(write(answer[1], &said, 1), "write");
        while (read(ask[0], &word, sizeof word) == sizeof word) {
            said = (char)sees(word);
            check(write(answer[1], &said, 1), "write");
        }
        _exit(0);
    }
    close(ask[0]);
    close(answer[1]);
    check(read(answer[0], &said, 1) - 1, "read");
    /* What is thawed where it lies is what the child's mappings show. */
    for (int polls = 0; is_frozen(memory) && polls < POLLS; polls++) poll(NULL, 0, 1);
    for (size_t at = 0; at < BYTES; at += PAGE)
        if (memcmp(memory + at, &word, sizeof word)) puts("the parent's memory changed");
    if (!strcmp(special, "no descriptors")) use_up_descriptors();
    int seen = 0;
    char *later = NULL;
    for (int round = 0; round < ROUNDS; round++) {
        check(getrandom(&word, sizeof word, 0), "getrandom");
        if (later) munmap(later, BYTES);
        later = new_memory();
        write_all(memory, word);
        write_all(later, word);
        check(write(ask[1], &word, sizeof word), "write");
        check(read(answer[0], &said, 1) - 1, "read");
        seen |= said;
    }
    for (size_t at = 0; at < BYTES; at += PAGE)
        if (memcmp(memory + at, &word, sizeof word)) puts("a store of the parent's is lost");
    close(ask[1]);
    waitpid(child, NULL, 0);
    puts(seen ? "the child saw what its parent wrote later" : "the child saw nothing");
    return seen;
}
