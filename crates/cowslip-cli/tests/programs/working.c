/* Threads that allocate, map, protect, discard, write and fork, each with a check of its own content. For each line of its input
   the program says "right" once all threads have gone on, or "wrong" and a reason. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 6
#define MIB (1 << 20)

static atomic_ulong rounds[THREADS];
static atomic_ulong ticks;
static _Atomic(const char *) wrong;

static void check(int right, const char *what) {
    if (!right)
        atomic_store(&wrong, what);
}

static int all(const unsigned char *bytes, size_t len, int value) {
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != value)
            return 0;
    return 1;
}

static void allocate(unsigned round, int mark) {
    unsigned char *blocks[16];
    for (int i = 0; i < 16; i++) {
        size_t len = (size_t)(round * 7919 + i * 104729) % (256 << 10) + 16;
        blocks[i] = malloc(len);
        memset(blocks[i], mark, len);
        check(all(blocks[i], len, mark), "a block");
    }
    for (int i = 0; i < 16; i++)
        free(blocks[i]);
}

static void map(unsigned round, int mark) {
    size_t len = (round % 5 + 1) * MIB;
    unsigned char *place = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        return check(0, "mmap");
    memset(place, mark, len);
    check(madvise(place, len / 2, MADV_DONTNEED) == 0, "madvise");
    check(all(place, len / 2, 0), "discarded memory");
    check(mprotect(place, len, PROT_READ) == 0, "mprotect");
    check(all(place + len / 2, len / 2, mark), "protected memory");
    unsigned char *moved = mremap(place, len, len + MIB, MREMAP_MAYMOVE);
    check(moved != MAP_FAILED && all(moved + len / 2, len / 2, mark), "moved memory");
    check(munmap(moved, len + MIB) == 0, "munmap");
}

static void fork_once(const unsigned char *kept, int mark) {
    pid_t child = fork();
    if (child == 0)
        _exit(all(kept, MIB, mark) ? 0 : 1);
    int status = 0;
    pid_t ended = child > 0 ? waitpid(child, &status, 0) : 0;
    /* A copy of the program has no children. */
    check(ended == child ? status == 0 : ended == -1 && errno == ECHILD, "a child");
}

static void *work(void *argument) {
    int number = (int)(long)argument, mark = number + 1;
    unsigned char *kept = malloc(MIB);
    memset(kept, mark, MIB);
    for (unsigned round = 0;; round++) {
        allocate(round, mark);
        map(round, mark);
        if (number == 0 && round % 8 == 0)
            fork_once(kept, mark);
        check(all(kept, MIB, mark), "memory of its own");
        memset(kept, mark, MIB);
        rounds[number]++;
    }
    return NULL;
}

static void tick(int signal) {
    (void)signal;
    ticks++;
}

static int have_gone_on(const unsigned long *before, unsigned long before_ticks) {
    for (int i = 0; i < THREADS; i++)
        if (rounds[i] < before[i] + 2)
            return 0;
    return ticks > before_ticks;
}

int main(void) {
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    ualarm(1000, 1000);
    for (long i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)i))
            return 1;
    }
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        unsigned long before[THREADS], before_ticks = ticks;
        for (int i = 0; i < THREADS; i++)
            before[i] = rounds[i];
        for (int naps = 0; naps < 20000 && !have_gone_on(before, before_ticks) && !wrong; naps++)
            usleep(1000);
        if (!wrong && !have_gone_on(before, before_ticks))
            wrong = "a thread stands still";
        if (wrong)
            printf("wrong: %s\n", wrong);
        else
            puts("right");
        fflush(stdout);
    }
    return 0;
}
