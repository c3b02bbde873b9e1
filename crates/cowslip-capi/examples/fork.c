/*
 * Counters that go on counting while a child writes down their values of one instant.
 *
 *     cc fork.c $(pkg-config --cflags --libs cowslip) -o fork
 *     ./fork > values
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cowslip.h>

enum { COUNTERS = 1 << 20 };

static void must(cowslip_status status, cowslip_error *error)
{
    if (status == COWSLIP_OK)
        return;
    const char *advice = cowslip_error_advice(error);
    fprintf(stderr, "fork: %s%s%s\n", cowslip_error_text(error), advice ? "; " : "", advice ? advice : "");
    exit(1);
}

/* Writes with write(2) alone, which a child may call although the parent has threads. */
static int write_in_child(const cowslip_arena *arena, const uint64_t *counters)
{
    cowslip_error *error = NULL;
    const char *from = (const char *)counters, *end = (const char *)(counters + COUNTERS);
    int pid;
    must(cowslip_fork(&arena, 1, &pid, &error), error);
    if (pid != 0)
        return pid;
    while (from < end) {
        ssize_t written = write(STDOUT_FILENO, from, (size_t)(end - from));
        if (written <= 0)
            _exit(1);
        from += written;
    }
    _exit(0);
}

/* The number of counters that change while half of them count. */
static size_t changes(const cowslip_arena *arena, uint64_t *counters)
{
    cowslip_error *error = NULL;
    cowslip_frozen *view;
    size_t changed = 0;
    must(cowslip_freeze(arena, 10000000000u, &view, &error), error);
    const uint64_t *before = cowslip_frozen_view(view, counters);
    for (size_t i = 0; i < COUNTERS; i += 2)
        counters[i]++;
    for (size_t i = 0; i < COUNTERS; i++)
        changed += counters[i] != before[i];
    cowslip_frozen_free(view);
    return changed;
}

static void print_metrics(const cowslip_arena *arena)
{
    cowslip_error *error = NULL;
    char *json;
    must(cowslip_metrics_json(arena, &json, &error), error);
    fprintf(stderr, "%s\n", json);
    cowslip_text_free(json);
}

int main(void)
{
    cowslip_error *error = NULL;
    cowslip_arena *arena;
    void *memory;
    int status;
    must(cowslip_arena_new(64 << 20, NULL, &arena, &error), error);
    must(cowslip_alloc(arena, COUNTERS * sizeof(uint64_t), &memory, &error), error);
    uint64_t *counters = memory;
    for (uint64_t i = 0; i < COUNTERS; i++)
        counters[i] = i;
    int pid = write_in_child(arena, counters);
    for (size_t i = 0; i < COUNTERS; i++)
        counters[i]++;
    if (waitpid(pid, &status, 0) != pid || status != 0)
        return 1;
    fprintf(stderr, "%zu counters changed\n", changes(arena, counters));
    print_metrics(arena);
    cowslip_arena_free(arena);
    return 0;
}
