// A process with MIB of memory that forks children, each of which writes WRITTEN pages of it and lives on.
// PAGES: "4k" or "thp", what the memory is advised to be on, or "any". For 1, 10 and 100 children prints a
// line of bytes: how many there are; VmRSS and VmPTE of this process, which has read all its memory since
// the last fork; and VmPTE and private memory of all children together.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MOST = 100, LOOK_MS = 10, CALM_LOOKS = 20, MOST_LOOKS = 1000 };

// The sum of the lines of /proc/PID/FILE that begin with `name`, in bytes.
static long long field(pid_t pid, const char *file, const char *name) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    FILE *text = fopen(path, "r");
    if (!text) exit(2);
    long long kib = 0;
    while (fgets(line, sizeof line, text)) {
        const char *colon = strchr(line, ':');
        if (colon && strncmp(line, name, strlen(name)) == 0) kib += atoll(colon + 1);
    }
    fclose(text);
    return kib * 1024;
}

static void write_some(volatile char *memory, size_t bytes, int pages, char value) {
    for (int i = 0; i < pages; i++) memory[bytes / PAGE * i / pages * PAGE] = value;
}

// Until this process has the same weight for a while: what is tidied up after a fork is done.
static void calm_down(void) {
    long long before = -1;
    for (int looks = 0, calm = 0; calm < CALM_LOOKS && looks < MOST_LOOKS; looks++) {
        long long now = field(getpid(), "status", "VmRSS:") + field(getpid(), "status", "VmPTE:");
        calm = now == before ? calm + 1 : 0;
        before = now;
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000}, NULL);
    }
}

int main(int count, char **words) {
    if (count != 4) return 2;
    size_t bytes = (size_t)atol(words[1]) << 20;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    if (strcmp(words[2], "4k") == 0) madvise(memory, bytes, MADV_NOHUGEPAGE);
    if (strcmp(words[2], "thp") == 0) madvise(memory, bytes, MADV_HUGEPAGE);
    for (size_t at = 0; at < bytes; at += PAGE) memory[at] = 1;

    pid_t parent = getpid(), children[MOST];
    int ready[2];
    if (pipe(ready) != 0) return 2;
    for (int n = 0; n < MOST;) {
        write_some(memory, bytes, 10, (char)n);
        children[n] = fork();
        if (children[n] < 0) return 2;
        if (children[n] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(2);
            write_some(memory, bytes, atoi(words[3]), 2);
            if (write(ready[1], "", 1) != 1) _exit(2);
            for (;;) pause();
        }
        char byte;
        if (read(ready[0], &byte, 1) != 1) return 2;
        n++;
        if (n != 1 && n != 10 && n != MOST) continue;
        calm_down();
        for (size_t at = 0; at < bytes; at += PAGE) ((volatile char *)memory)[at];
        long long tables = 0, private = 0;
        for (int i = 0; i < n; i++) {
            tables += field(children[i], "status", "VmPTE:");
            private += field(children[i], "smaps_rollup", "Private_");
        }
        printf("%d %lld %lld %lld %lld\n", n, field(parent, "status", "VmRSS:"),
               field(parent, "status", "VmPTE:"), tables, private);
    }
    for (int i = 0; i < MOST; i++) kill(children[i], SIGKILL);
    return 0;
}
