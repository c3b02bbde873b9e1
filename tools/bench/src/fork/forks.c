// How long fork holds a process with MIB of memory up. PAGES: "4k" or "thp", what the memory is advised to be
// on, or "any"; ROW: forks in a row. Prints lines of a word and a number: "start", "first", "again" and "row", the
// nanoseconds of a fork (the first since the start; of memory written since the last child ended; while a child lives;
// the same, of a child that ends at once), "vmpte" and "vmrss", the bytes of a child's page tables and memory, and
// "touch", the nanoseconds of a first touch of free memory before the forks, a page, the mean of base and huge ones.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE = 2 << 20, AGAIN = 5, WRITTEN = 10 };
enum { WARM = 128 << 20, WARM_TRIES = 2 };
enum { LOOK_MS = 10, CALM_LOOKS = 50, MOST_LOOKS = 1000 };

static volatile char *memory;
static size_t bytes;

// A line of /proc/PID/status that begins with `name`, in bytes.
static long long field(pid_t pid, const char *name) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *text = fopen(path, "r");
    if (!text) exit(2);
    long long kib = 0;
    while (fgets(line, sizeof line, text)) {
        if (strncmp(line, name, strlen(name)) == 0) kib = atoll(line + strlen(name));
    }
    fclose(text);
    return kib * 1024;
}

// Until this process has the same weight for a while: what is tidied up after a fork is done.
static void calm_down(void) {
    long long before = -1;
    for (int looks = 0, calm = 0; calm < CALM_LOOKS && looks < MOST_LOOKS; looks++) {
        long long now = field(getpid(), "VmRSS:") + field(getpid(), "VmPTE:");
        calm = now == before ? calm + 1 : 0;
        before = now;
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000}, NULL);
    }
}

static void write_all(void) {
    for (size_t at = 0; at < bytes; at += PAGE) memory[at]++;
}

static void write_some(void) {
    for (int i = 0; i < WRITTEN && bytes > 0; i++) memory[bytes / PAGE * i / WRITTEN * PAGE]++;
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// A child that ends at once, or lives on until it is killed. Returns when it has done so, or waits.
static pid_t timed(const char *kind, int lives) {
    pid_t parent = getpid();
    int ready[2];
    if (pipe(ready) != 0) exit(2);
    long long began = now_ns();
    pid_t child = fork();
    long long ended = now_ns();
    if (child < 0) exit(2);
    if (child == 0) {
        if (!lives) _exit(0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent || write(ready[1], "", 1) != 1) _exit(2);
        for (;;) pause();
    }
    char byte;
    int status;
    if (lives && read(ready[0], &byte, 1) != 1) exit(2);
    if (!lives && (waitpid(child, &status, 0) != child || status != 0)) exit(2);
    close(ready[0]);
    close(ready[1]);
    printf("%s %lld\n", kind, ended - began);
    return child;
}

// Takes free memory that the forks will need from the host, if the host has it.
static void warm(void) {
    long long least = -1;
    for (int try = 0; try < WARM_TRIES; try++) {
        long long took = 0;
        for (int huge = 0; huge < 2; huge++) {
            volatile char *free_memory =
                mmap(NULL, WARM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (free_memory == MAP_FAILED) exit(2);
            madvise((void *)free_memory, WARM, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
            long long began = now_ns();
            for (size_t at = 0; at < WARM; at += PAGE) free_memory[at] = 1;
            took += now_ns() - began;
            munmap((void *)free_memory, WARM);
        }
        if (least < 0 || took < least) least = took;
    }
    printf("touch %lld\n", least / (2 * WARM / PAGE));
}

int main(int count, char **words) {
    if (count != 4) return 2;
    int row = atoi(words[3]);
    bytes = (size_t)atol(words[1]) << 20;
    if (bytes > 0) {
        memory = aligned_alloc(HUGE, bytes);
        if (!memory) return 2;
        if (strcmp(words[2], "4k") == 0) madvise((void *)memory, bytes, MADV_NOHUGEPAGE);
        if (strcmp(words[2], "thp") == 0) madvise((void *)memory, bytes, MADV_HUGEPAGE);
    }
    write_all();
    warm();
    timed("start", 0);
    calm_down();
    write_all();
    warm();

    pid_t children[1 + AGAIN];
    for (int i = 0; i <= AGAIN; i++) {
        if (i > 0) write_some();
        children[i] = timed(i == 0 ? "first" : "again", 1);
    }
    printf("vmpte %lld\nvmrss %lld\n", field(children[AGAIN], "VmPTE:"), field(children[AGAIN], "VmRSS:"));
    for (int i = 0; i < row; i++) {
        write_some();
        timed("row", 0);
    }
    for (int i = 0; i <= AGAIN; i++) kill(children[i], SIGKILL);
    return 0;
}
