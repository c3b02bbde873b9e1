// A malloc benchmark: THREADS threads, each of which makes OPS allocations, resizings and frees of blocks of
// many sizes, writes to every page of a block and checks on the way what it wrote. Prints the seconds.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCKS = 50000, PAGE = 4096 };

static long ops;

typedef struct {
    unsigned char *start;
    size_t bytes;
    unsigned char tag;
} block;

// Mostly small, up to 1 KiB; one in 32 up to 32 KiB, one in 1024 up to 1 MiB.
static size_t size_of(uint64_t random) {
    size_t most = random % 1024 == 0 ? 1 << 20 : random % 32 == 0 ? 32 << 10 : 1 << 10;
    return 16 + (random >> 16) % most;
}

static void write_to(block *it, unsigned char tag) {
    it->tag = tag;
    for (size_t at = 0; at < it->bytes; at += PAGE) it->start[at] = tag;
    memset(it->start, tag, it->bytes < 64 ? it->bytes : 64);
}

static void check(const block *it, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE) {
        if (it->start[at] == it->tag) continue;
        fprintf(stderr, "a block of %zu bytes lost what was written to it\n", it->bytes);
        exit(1);
    }
}

static void *churn(void *seed) {
    block *blocks = calloc(BLOCKS, sizeof *blocks);
    uint64_t random = (uintptr_t)seed;
    for (long op = 0; op < ops; op++) {
        random = random * 6364136223846793005 + 1442695040888963407;
        block *it = &blocks[(random >> 33) % BLOCKS];
        size_t bytes = size_of(random >> 20);
        if (it->start && random >> 62) {
            check(it, it->bytes);
            free(it->start);
            it->start = NULL;
            continue;
        }
        unsigned char *start = realloc(it->start, bytes);
        if (!start) exit(2);
        size_t kept = it->start ? (bytes < it->bytes ? bytes : it->bytes) : 0;
        it->start = start;
        check(it, kept);
        it->bytes = bytes;
        write_to(it, (unsigned char)op);
    }
    for (int i = 0; i < BLOCKS; i++) free(blocks[i].start);
    free(blocks);
    return NULL;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    long threads = atol(words[1]);
    ops = atol(words[2]);
    double began = seconds();
    // One thread is the program's first, so that malloc may do without locks.
    pthread_t others[64];
    if (threads < 1 || threads > 64) return 2;
    for (long i = 1; i < threads; i++) {
        if (pthread_create(&others[i], NULL, churn, (void *)(i + 1)) != 0) return 2;
    }
    churn((void *)1);
    for (long i = 1; i < threads; i++) pthread_join(others[i], NULL);
    printf("%.6f\n", seconds() - began);
    return 0;
}
