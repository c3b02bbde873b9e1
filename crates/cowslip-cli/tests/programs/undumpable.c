/* Forks as an ordinary user with the right to handle page faults. It forbids dumps of this process
 * `before` it has memory or `after` that: the files of /proc then belong to root. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64 << 20, NOBODY = 65534 };

static void check(long answer, const char *what) {
    if (answer < 0) {
        printf("%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

int main(int count, char **words) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct one[2] = {{1u << CAP_SYS_PTRACE, 1u << CAP_SYS_PTRACE, 0}, {0, 0, 0}};
    int is_before = count > 1 && !strcmp(words[1], "before"), status;
    check(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "keep capabilities");
    check(setresgid(NOBODY, NOBODY, NOBODY), "setresgid");
    check(setresuid(NOBODY, NOBODY, NOBODY), "setresuid");
    check(syscall(SYS_capset, &header, one), "capset");
    check(prctl(PR_SET_DUMPABLE, !is_before, 0, 0, 0), "prctl");
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 7, BYTES);
    check(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl");
    for (int round = 0; round < 3; round++) {
        memory[0] = (char)round;
        pid_t child = fork();
        check(child, "fork");
        if (child == 0) {
            int wrong = memory[0] != round;
            for (size_t at = 4096; at < BYTES; at += 4096) wrong |= memory[at] != 7;
            _exit(wrong);
        }
        memory[0] = 9;
        check(waitpid(child, &status, 0), "waitpid");
        printf("child: %d\n", status);
    }
    return 0;
}
