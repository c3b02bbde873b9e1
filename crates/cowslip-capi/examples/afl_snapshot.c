/*
 * A fuzzer's loop in one process: the target's state is taken once, and taken back after each input.
 *
 *     cc afl_snapshot.c $(pkg-config --cflags --libs cowslip) -o afl_snapshot
 *     ./afl_snapshot [MIB [INPUTS]]
 *
 * The functions have the names and the use of AFL++'s snapshot module for the kernel (github.com/AFLplusplus/
 * AFL-Snapshot-LKM), in user space: state that lies in the arena is taken back, the rest of the process is not.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cowslip.h>

static cowslip_arena *arena;
static cowslip_clone *state;
static void *origin;

static void must(cowslip_status status, cowslip_error *error)
{
    if (status == COWSLIP_OK)
        return;
    fprintf(stderr, "afl_snapshot: %s\n", cowslip_error_text(error));
    exit(1);
}

/* Where the target keeps its state until it is taken. */
static void *afl_snapshot_init(size_t bytes)
{
    cowslip_error *error = NULL;
    must(cowslip_arena_new(bytes, NULL, &arena, &error), error);
    must(cowslip_alloc(arena, bytes, &origin, &error), error);
    return origin;
}

/* Takes it: from now on the target works on what this returns. */
static void *afl_snapshot_take(void)
{
    cowslip_error *error = NULL;
    cowslip_frozen *view = NULL;
    cowslip_template *snapshot = NULL;
    must(cowslip_freeze(arena, 0, &view, &error), error);
    must(cowslip_template_new(view, &snapshot, &error), error);
    must(cowslip_clone_new(snapshot, COWSLIP_PLACE_ANYWHERE, &state, &error), error);
    cowslip_template_free(snapshot);
    return cowslip_clone_at(state, origin);
}

static void afl_snapshot_restore(void)
{
    cowslip_error *error = NULL;
    must(cowslip_clone_reset(state, &error), error);
}

static void afl_snapshot_clean(void)
{
    cowslip_clone_free(state);
    cowslip_arena_free(arena);
}

/* The target: an input changes words all over its state, and must find it as it was taken. */
static int target(uint64_t *words, uint64_t count, uint64_t seed)
{
    uint64_t input = seed;
    for (int i = 0; i < 100; i++) {
        input = input * 6364136223846793005u + 1442695040888963407u;
        uint64_t at = (input >> 20) % count;
        if (words[at] != at * 3 && words[at] != ~seed)
            return 0;
        words[at] = ~seed;
    }
    return 1;
}

int main(int argc, char **argv)
{
    size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) << 20;
    unsigned long inputs = argc > 2 ? strtoul(argv[2], NULL, 10) : 2000;
    uint64_t count = bytes / sizeof(uint64_t);
    struct timespec began, ended;
    if (bytes == 0 || inputs == 0) {
        fprintf(stderr, "usage: afl_snapshot [MIB [INPUTS]]\n");
        return 2;
    }
    uint64_t *words = afl_snapshot_init(bytes);
    for (uint64_t i = 0; i < count; i++)
        words[i] = i * 3;
    words = afl_snapshot_take();
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (unsigned long input = 0; input < inputs; input++) {
        if (!target(words, count, input)) {
            fprintf(stderr, "afl_snapshot: input %lu met what another left\n", input);
            return 1;
        }
        afl_snapshot_restore();
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double seconds = (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9;
    printf("%lu inputs on %zu MiB of state, %.0f a second\n", inputs, bytes >> 20, (double)inputs / seconds);
    afl_snapshot_clean();
    return 0;
}
