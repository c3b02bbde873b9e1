// A heap of 128 MiB in small blocks, told by its first argument what to do with it. Prints what it finds.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, SIZE = 2000, COUNT = 128 * MIB / SIZE, KEPT = 100, THREADS = 8 };

static unsigned char *blocks[COUNT];

static long resident_mib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*s %ld", &pages) != 1)
        exit(2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE) / MIB;
}

static void fill(int from, int to) {
    for (int i = from; i < to; i++) {
        blocks[i] = malloc(SIZE);
        memset(blocks[i], i, SIZE);
    }
}

static void empty(int from, int to) {
    for (int i = from; i < to; i++)
        if (i % KEPT)
            free(blocks[i]);
}

static void check_kept(void) {
    for (int i = 0; i < COUNT; i += KEPT)
        for (int at = 0; at < SIZE; at++)
            if (blocks[i][at] != (unsigned char)i)
                exit(3);
}

static int is_returned(void) { return resident_mib() < 40; }

// Allocates next to nothing.
static void await_return(void) {
    for (int looks = 0; looks < 600 && !is_returned(); looks++)
        usleep(100000);
    printf("%s\n", is_returned() ? "returned" : "kept");
    check_kept();
}

static pthread_barrier_t started, filled, emptied;

static void *fill_and_empty(void *number) {
    int from = (int)(intptr_t)number * (COUNT / THREADS), to = from + COUNT / THREADS;
    pthread_barrier_wait(&started);
    fill(from, to);
    pthread_barrier_wait(&filled);
    empty(from, to);
    pthread_barrier_wait(&emptied);
    pause();
    return NULL;
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "threads")) {
        pthread_barrier_init(&started, NULL, THREADS);
        pthread_barrier_init(&filled, NULL, THREADS);
        pthread_barrier_init(&emptied, NULL, THREADS + 1);
        for (intptr_t i = 0; i < THREADS; i++) {
            pthread_t thread;
            pthread_create(&thread, NULL, fill_and_empty, (void *)i);
        }
        pthread_barrier_wait(&emptied);
        await_return();
        return 0;
    }
    if (!strcmp(what, "rests")) {
        fill(0, COUNT);
        empty(0, COUNT);
        await_return();
        return 0;
    }
    if (!strcmp(what, "mallopt"))
        printf("%d ", mallopt(M_TRIM_THRESHOLD, 64 << 10));
    fill(0, COUNT);
    struct mallinfo2 full = mallinfo2();
    empty(0, COUNT);
    if (!strcmp(what, "trim"))
        printf("%d ", malloc_trim(0));
    printf("%s\n", is_returned() ? "returned" : "kept");
    check_kept();
    struct mallinfo2 rest = mallinfo2();
    printf("%d %d\n", full.uordblks >= 128 * MIB, rest.uordblks < 32 * MIB && full.arena > rest.uordblks);
    malloc_info(0, stdout);
    malloc_stats();
}
