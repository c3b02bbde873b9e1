/* Images: saved while the program runs on, verified, restored under other addresses. argv[1]: a folder. */
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

enum { COUNT = 1 << 19 };

static int tell(void *context, uint64_t done, uint64_t total)
{
    uint64_t *told = context;
    CHECK(done <= total);
    *told += 1;
    return 0;
}

static int refuse(void *context, uint64_t done, uint64_t total)
{
    (void)context, (void)done, (void)total;
    return 1;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    char first[4096], second[4096];
    snprintf(first, sizeof first, "%s/first.cowslip", argv[1]);
    snprintf(second, sizeof second, "%s/second.cowslip", argv[1]);

    cowslip_arena *arena = arena_of(64 * MIB);
    uint64_t *words = words_of(arena, COUNT * sizeof *words);
    fill(words, COUNT, 3);
    cowslip_frozen *view = NULL;
    OK(cowslip_freeze(arena, 0, &view, &why));
    fill(words, COUNT, 4);

    uint64_t told = 0;
    cowslip_root root = { "words", words, COUNT * sizeof *words };
    cowslip_save_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof(struct cowslip_save_options);
    options.compression = "zstd:1";
    options.roots = &root;
    options.root_count = 1;
    options.progress = tell;
    options.context = &told;
    const cowslip_frozen *views[] = { view };
    OK(cowslip_save(views, 1, first, &options, &why));
    /* A place that is no file stays what it is. */
    const char *places[] = { argv[1], second };
    CHECK(mkfifo(second, 0600) == 0);
    for (int i = 0; i < 2; i++) {
        struct stat before, after;
        CHECK(stat(places[i], &before) == 0);
        FAILS(COWSLIP_FILE, cowslip_save(views, 1, places[i], &options, &why), "it is a");
        CHECK(stat(places[i], &after) == 0);
        CHECK(after.st_ino == before.st_ino && after.st_mode == before.st_mode);
    }
    CHECK(unlink(second) == 0);
    CHECK(told > 0);
    cowslip_frozen_free(view);
    OK(cowslip_freeze(arena, 30000000000ull, &view, &why));
    views[0] = view;
    options.parent = first;
    OK(cowslip_save(views, 1, second, &options, &why));
    options.progress = refuse;
    FAILS(COWSLIP_BUSY, cowslip_save(views, 1, second, &options, &why), "");
    options.progress = NULL;
    options.compression = "best";
    FAILS(COWSLIP_USAGE, cowslip_save(views, 1, second, &options, &why), "compression");
    options.compression = NULL;
    root.length = 65 * MIB;
    FAILS(COWSLIP_USAGE, cowslip_save(views, 1, second, &options, &why), "words");
    FAILS(COWSLIP_USAGE, cowslip_save(views, 0, second, NULL, &why), "no view");
    FAILS(COWSLIP_FILE, cowslip_save(views, 1, "/nowhere/at/all", NULL, &why), "nowhere");
    cowslip_frozen_free(view);
    cowslip_arena_free(arena);

    OK(cowslip_verify(second, NULL, NULL, &why));
    FAILS(COWSLIP_FILE, cowslip_verify("/nowhere/at/all", NULL, NULL, &why), "nowhere");

    cowslip_restore_options how;
    memset(&how, 0, sizeof how);
    how.size = sizeof(struct cowslip_restore_options);
    how.eager = getenv("COWSLIP_TEST_PLAIN") != NULL;
    const char *files[] = { first, second };
    for (int i = 0; i < 2; i++) {
        OK(cowslip_restore(files[i], &how, &arena, &why));
        void *start = NULL;
        size_t length = 0;
        OK(cowslip_root_find(arena, "words", &start, &length, &why));
        CHECK(length == COUNT * sizeof *words);
        CHECK(holds(start, COUNT, 3 + (uint64_t)i));
        OK(cowslip_restore_wait(arena, 60000000000ull, &why));
        fill(start, COUNT, 8);
        OK(cowslip_freeze(arena, 0, &view, &why));
        cowslip_frozen_free(view);
        FAILS(COWSLIP_USAGE, cowslip_root_find(arena, "other", &start, &length, &why), "other");
        cowslip_arena_free(arena);
    }
    how.arena = 1;
    FAILS(COWSLIP_USAGE, cowslip_restore(first, &how, &arena, &why), "1 arena");
    return 0;
}
