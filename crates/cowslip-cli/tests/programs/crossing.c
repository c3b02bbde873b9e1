// A heap that grows from glibc's first MiB to the bundled malloc's memory, in several threads and across forks: blocks
// keep their content, whichever allocator has them when they are resized or freed. Prints "small" if the first block is
// from brk, then "large" if one beyond 2 MiB is not.
#define _DEFAULT_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, BLOCKS = 400, TURNS = 30 };
static char *heap;

static int is_of_brk(void *block) { return (char *)block >= heap && (char *)block < (char *)sbrk(0); }

static void check(int is_right, const char *what) {
    if (!is_right) { fprintf(stderr, "%s\n", what); _exit(1); }
}

static void *grow(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number + 1;
    static __thread unsigned char *block[BLOCKS];
    static __thread size_t len[BLOCKS];
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < BLOCKS; i++) {
            for (size_t at = 0; at < len[i]; at += 97) check(block[i][at] == (unsigned char)i, "content");
            switch (rand_r(&seed) % 4) {
            case 0: free(block[i]); block[i] = NULL; len[i] = 0; continue;
            case 1: free(block[i]); check(posix_memalign((void **)&block[i], 256, len[i] = 1 + rand_r(&seed) % 3000) == 0, "aligned"); break;
            case 2: free(block[i]); block[i] = calloc(1, len[i] = 1 + rand_r(&seed) % 3000); break;
            default: {
                size_t old = len[i];
                block[i] = realloc(block[i], len[i] = 1 + rand_r(&seed) % 6000);
                for (size_t at = 0; at < old && at < len[i]; at += 97) check(block[i][at] == (unsigned char)i, "moved content");
            }
            }
            check(block[i] && malloc_usable_size(block[i]) >= len[i], "memory");
            memset(block[i], i, len[i]);
        }
        if (turn % 10 == 5) {
            pid_t child = fork();
            if (child == 0) {
                for (int i = 0; i < BLOCKS; i++) { block[i] = realloc(block[i], 5000); check(block[i] != NULL, "memory of a child"); }
                _exit(0);
            }
            int status;
            check(waitpid(child, &status, 0) == child && status == 0, "child");
        }
    }
    return NULL;
}

int main(void) {
    heap = malloc(100);
    printf("%s\n", is_of_brk(heap) ? "small" : "not of brk");
    heap -= 1 << 16;
    pthread_t thread[THREADS];
    for (long i = 0; i < THREADS; i++) check(pthread_create(&thread[i], NULL, grow, (void *)i) == 0, "thread");
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2 << 10; i++) check(malloc(1024) != NULL, "memory");
    printf("%s\n", is_of_brk(malloc(1024)) ? "of brk" : "large");
}
