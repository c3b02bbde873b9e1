// Families of processes that share what they inherited and map memory of their own. Prints what each sees.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, TABLE = 6 * MIB, WORKERS = 4 };

static void check(int is_right, const char *what)
{
    if (!is_right) {
        printf("%s: %s\n", what, strerror(errno));
        fflush(stdout);
        _exit(1);
    }
}

static char *map(size_t len)
{
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    return memory;
}

static size_t wrong_bytes(const char *memory, size_t len, char value)
{
    size_t wrong = 0;
    for (size_t i = 0; i < len; i++)
        wrong += memory[i] != value;
    return wrong;
}

static void wait_for_all(void)
{
    int status, failures = 0;
    while (wait(&status) > 0)
        failures += status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    printf("%d failed\n", failures);
}

// A master that loads tables, forks a worker after each, and is killed. Its first worker then maps more than the master
// ever had, while the others still read what they were forked with.
static void orphans(void)
{
    static char *tables[WORKERS];
    int done[2];
    check(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && pipe(done) == 0, "subreaper");
    if (fork() == 0) {
        pid_t master = getpid();
        for (int worker = 0; worker < WORKERS; worker++) {
            tables[worker] = memset(map(TABLE), 'a' + worker, TABLE);
            if (fork() != 0)
                continue;
            while (getppid() == master)
                usleep(1000);
            char word = 0;
            if (worker == 0) {
                for (int i = 0; i < 20; i++)
                    memset(map(4 * MIB), 0xee, 4 * MIB);
                for (int i = 1; i < WORKERS; i++)
                    check(write(done[1], &word, 1) == 1, "write");
            } else {
                check(read(done[0], &word, 1) == 1, "read");
            }
            size_t wrong = 0;
            for (int table = 0; table <= worker; table++)
                wrong += wrong_bytes(tables[table], TABLE, 'a' + table);
            _exit(wrong != 0);
        }
        kill(master, SIGKILL);
    }
    wait_for_all();
}

// Maps, forks and unmaps in turn, ten times as much as fits, perhaps beside a child that lives all the time.
static void rounds(int has_old_child)
{
    char *old = memset(map(TABLE), 'o', TABLE);
    pid_t child = has_old_child ? fork() : 0;
    if (has_old_child && child == 0) {
        pause();
        _exit(0);
    }
    size_t wrong = 0;
    for (int round = 0; round < 300; round++) {
        char *memory = map(2 * MIB);
        wrong += wrong_bytes(memory, 2 * MIB, 0);
        memset(memory, 'a' + round % 26, 2 * MIB);
        pid_t passing = fork();
        if (passing == 0)
            _exit(wrong_bytes(memory, 2 * MIB, 'a' + round % 26) != 0);
        int status;
        check(passing > 0 && waitpid(passing, &status, 0) == passing && status == 0, "round");
        munmap(memory, 2 * MIB);
    }
    if (has_old_child)
        kill(child, SIGKILL);
    printf("%zu wrong bytes, %zu of the old\n", wrong, wrong_bytes(old, TABLE, 'o'));
    wait_for_all();
}

// A worker that maps memory of its own, forks, and writes on.
static void worker(void)
{
    char *inherited = memset(map(TABLE), 'i', TABLE);
    if (fork() == 0) {
        char *own = memset(map(4 * TABLE), 'w', 4 * TABLE);
        memset(inherited, 'w', TABLE / 2);
        for (int i = 0; i < 3; i++) {
            if (fork() == 0) {
                usleep(20000);
                size_t wrong = wrong_bytes(own + i, 4 * TABLE - i, 'w') +
                               wrong_bytes(inherited + TABLE / 2, TABLE / 2, 'i');
                _exit(wrong != 0);
            }
            own[i] = 'x';
        }
        wait_for_all();
        exit(0);
    }
    wait_for_all();
    printf("%zu wrong bytes\n", wrong_bytes(inherited, TABLE, 'i'));
}

// Every other page may only be read. Whether it may be written is asked of read(2).
static void pieces(void)
{
    enum { PIECES = 6000, PAGE = 4096 };
    size_t len = 2 * PIECES * PAGE;
    char *memory = memset(map(len), 'p', len);
    for (int i = 0; i < PIECES; i++)
        check(mprotect(memory + 2 * i * PAGE, PAGE, PROT_READ) == 0, "mprotect");
    for (int i = 0; i < 2; i++) {
        if (fork() == 0) {
            int zero[2], writable = 0;
            check(pipe(zero) == 0, "pipe");
            for (int j = 0; j < 2 * PIECES; j += 97) {
                check(write(zero[1], "p", 1) == 1, "write");
                int is_read = read(zero[0], memory + j * PAGE, 1) == 1;
                writable += is_read;
                check(is_read == j % 2, "protection");
                char rest;
                check(is_read || read(zero[0], &rest, 1) == 1, "rest");
            }
            _exit(writable == 0 || wrong_bytes(memory, len, 'p') != 0);
        }
        wait_for_all();
    }
}

int main(int count, char **arguments)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "orphans"))
        orphans();
    else if (!strcmp(what, "rounds"))
        rounds(0);
    else if (!strcmp(what, "rounds-beside-a-child"))
        rounds(1);
    else if (!strcmp(what, "worker"))
        worker();
    else if (!strcmp(what, "pieces"))
        pieces();
    else
        return 2;
    return 0;
}
