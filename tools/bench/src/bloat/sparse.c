// Memory of which a page in each 2 MiB is used: argv[1] MiB of address space. Waits for a line before it begins, and answers with
// how many bytes are not what they should be once it has forked three times.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define STEP (2ul << 20)

int main(int count, char **words) {
    if (count != 2) return 2;
    size_t bytes = (size_t)atol(words[1]) << 20;
    char line[16];
    if (!fgets(line, sizeof line, stdin)) return 2;
    volatile char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return 2;
    for (size_t at = 0; at < bytes; at += STEP) memory[at] = 1;
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child < 0) return 2;
        if (child == 0) _exit(0);
        int status;
        if (waitpid(child, &status, 0) != child || status != 0) return 2;
        for (size_t at = 0; at < bytes; at += STEP) memory[at]++;
    }
    size_t wrong = 0;
    for (size_t at = 0; at < bytes; at += STEP) wrong += memory[at] != 4;
    printf("%zu\n", wrong);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) continue;
    return 0;
}
