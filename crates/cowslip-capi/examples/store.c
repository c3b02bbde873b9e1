/*
 * A store in 200 lines: keys and values in memory that is saved while it changes, and restored at once.
 *
 *     cc store.c $(pkg-config --cflags --libs cowslip) -lpthread -o store
 *     ./store FILE        reads commands: set KEY VALUE, get KEY, count, save, wait, quit
 *
 * `save` takes as long as a freeze, a fraction of a millisecond: a thread writes the image. A store that is started
 * again has its content at once; what is touched is read first.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cowslip.h>

enum { SLOTS = 1 << 20, KEY = 40, VALUE = 88 };

/* All that is to be found again lies in the arena and refers to itself by numbers, not by addresses. */
struct slot {
    char key[KEY]; /* empty: free */
    char value[VALUE];
};

struct table {
    uint64_t used;
    struct slot slots[SLOTS];
};

static cowslip_arena *arena;
static struct table *table;

/* One save at a time. */
static struct {
    pthread_t thread;
    int runs;
    cowslip_frozen *view;
    const char *file;
} saving;

static void must(cowslip_status status, cowslip_error *error)
{
    if (status == COWSLIP_OK)
        return;
    fprintf(stderr, "store: %s\n", cowslip_error_text(error));
    exit(1);
}

/* The table of an image, or an empty one. */
static void begin(const char *file)
{
    cowslip_error *error = NULL;
    void *start;
    size_t length;
    if (access(file, F_OK) == 0) {
        must(cowslip_restore(file, NULL, &arena, &error), error);
        must(cowslip_root_find(arena, "table", &start, &length, &error), error);
        if (length != sizeof(struct table)) {
            fprintf(stderr, "store: %s is another program's\n", file);
            exit(1);
        }
    } else {
        must(cowslip_arena_new(2 * sizeof(struct table), NULL, &arena, &error), error);
        must(cowslip_alloc(arena, sizeof(struct table), &start, &error), error);
    }
    table = start;
}

static uint64_t hash(const char *key)
{
    uint64_t sum = 14695981039346656037u;
    for (; *key; key++)
        sum = (sum ^ (unsigned char)*key) * 1099511628211u;
    return sum;
}

/* Where the key is, or would be; NULL if the table is full. */
static struct slot *find(const char *key)
{
    uint64_t at = hash(key);
    for (uint64_t i = 0; i < SLOTS; i++) {
        struct slot *slot = &table->slots[(at + i) % SLOTS];
        if (slot->key[0] == '\0' || strcmp(slot->key, key) == 0)
            return slot;
    }
    return NULL;
}

static void set(const char *key, const char *value)
{
    struct slot *slot = find(key);
    if (slot == NULL || strlen(key) >= KEY || strlen(value) >= VALUE) {
        puts("error");
        return;
    }
    if (slot->key[0] == '\0') {
        strcpy(slot->key, key);
        table->used++;
    }
    strcpy(slot->value, value);
    puts("ok");
}

static void get(const char *key)
{
    struct slot *slot = find(key);
    puts(slot != NULL && slot->key[0] != '\0' ? slot->value : "none");
}

static void *write_image(void *unused)
{
    cowslip_error *error = NULL;
    cowslip_root root = { "table", table, sizeof *table };
    cowslip_save_options options;
    const cowslip_frozen *views[] = { saving.view };
    (void)unused;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.compression = "lz4";
    options.roots = &root;
    options.root_count = 1;
    if (cowslip_save(views, 1, saving.file, &options, &error) != COWSLIP_OK)
        fprintf(stderr, "store: %s\n", cowslip_error_text(error));
    cowslip_error_free(error);
    cowslip_frozen_free(saving.view);
    return NULL;
}

static void wait_for_save(void)
{
    if (saving.runs)
        pthread_join(saving.thread, NULL);
    saving.runs = 0;
}

static void save(const char *file)
{
    cowslip_error *error = NULL;
    struct timespec began, frozen;
    wait_for_save();
    saving.file = file;
    clock_gettime(CLOCK_MONOTONIC, &began);
    must(cowslip_freeze(arena, 10000000000u, &saving.view, &error), error);
    clock_gettime(CLOCK_MONOTONIC, &frozen);
    saving.runs = pthread_create(&saving.thread, NULL, write_image, NULL) == 0;
    if (!saving.runs)
        write_image(NULL);
    printf("saving, held up for %.3f ms\n", (double)(frozen.tv_sec - began.tv_sec) * 1e3 +
                                                (double)(frozen.tv_nsec - began.tv_nsec) / 1e6);
}

int main(int argc, char **argv)
{
    char line[256], key[256], value[256];
    if (argc != 2) {
        fprintf(stderr, "usage: store FILE\n");
        return 2;
    }
    begin(argv[1]);
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "set %255s %255[^\n]", key, value) == 2)
            set(key, value);
        else if (sscanf(line, "get %255s", key) == 1)
            get(key);
        else if (strcmp(line, "count\n") == 0)
            printf("%llu\n", (unsigned long long)table->used);
        else if (strcmp(line, "save\n") == 0)
            save(argv[1]);
        else if (strcmp(line, "wait\n") == 0)
            wait_for_save();
        else if (strcmp(line, "quit\n") == 0)
            break;
        else
            puts("error");
    }
    wait_for_save();
    cowslip_arena_free(arena);
    return 0;
}
