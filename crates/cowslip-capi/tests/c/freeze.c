/* Arenas, views, allocation, wrong arguments, errors. */
#include <errno.h>
#include <pthread.h>

#include "check.h"

enum { COUNT = 1 << 19 };

static void *freeze_often(void *arena)
{
    for (int i = 0; i < 20; i++) {
        cowslip_frozen *view = NULL;
        cowslip_error *reason = NULL;
        cowslip_status status = cowslip_freeze(arena, 10000000000ull, &view, &reason);
        if (status != COWSLIP_OK)
            fprintf(stderr, "freeze %d: %s\n", i, cowslip_error_text(reason));
        CHECK(status == COWSLIP_OK);
        cowslip_frozen_free(view);
    }
    return NULL;
}

/* Whether no hugetlb page is to be had. */
static int is_empty_pool(void)
{
    const char *counts[] = { "nr_hugepages", "nr_overcommit_hugepages" };
    for (int i = 0; i < 2; i++) {
        char path[100];
        long count = -1;
        snprintf(path, sizeof path, "/sys/kernel/mm/hugepages/hugepages-2048kB/%s", counts[i]);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            return 0;
        int found = fscanf(file, "%ld", &count);
        fclose(file);
        if (found != 1 || count != 0)
            return 0;
    }
    return 1;
}

// Has as many views as can be, and goes back to some of them.
static void go_back(cowslip_arena *arena, uint64_t *words, cowslip_frozen *first, cowslip_frozen *second)
{
    cowslip_frozen *views[62] = { NULL };

    for (int i = 0; i < 62; i++) {
        words[i] += 1000;
        OK(cowslip_prepare_freeze(arena, &why));
        OK(cowslip_freeze(arena, 0, &views[i], &why));
    }
    CHECK(cowslip_freeze(arena, 0, &(cowslip_frozen *){ NULL }, &why) == COWSLIP_BUSY);
    CHECK(strncmp(cowslip_error_text(why), "cannot freeze on 0x", 19) == 0);
    CHECK(strstr(cowslip_error_text(why), "freeze_timeout") == NULL);
    CHECK(strstr(cowslip_error_text(why), "there are as many views as can be") != NULL);
    CHECK(strstr(cowslip_error_text(why), cowslip_error_advice(why)) == NULL);
    cowslip_error_free(why);
    why = NULL;
    const uint64_t *then = cowslip_frozen_view(views[40], words);
    CHECK(then[40] == 1041 && then[41] == 42);
    OK(cowslip_roll_back(arena, views[20], &why));
    CHECK(words[20] == 1021 && words[21] == 22);
    OK(cowslip_roll_back(arena, first, &why));
    CHECK(holds(words, COUNT, 1));
    FAILS(COWSLIP_USAGE, cowslip_roll_back(arena, NULL, &why), "frozen");
    for (int i = 0; i < 62; i++)
        cowslip_frozen_free(views[i]);
    cowslip_frozen_free(second);
}

int main(void)
{
    CHECK(cowslip_abi() >= COWSLIP_ABI);
    cowslip_arena *arena = arena_of(64 * MIB);
    uint64_t *words = words_of(arena, COUNT * sizeof *words);
    CHECK((uintptr_t)words % (2 * MIB) == 0);
    CHECK(words[0] == 0 && words[COUNT - 1] == 0);
    void *start = NULL;
    size_t length = 0;
    OK(cowslip_arena_range(arena, &start, &length, &why));
    CHECK(length == 64 * MIB && (char *)words >= (char *)start);

    fill(words, COUNT, 1);
    cowslip_frozen *view = NULL;
    OK(cowslip_freeze(arena, 0, &view, &why));
    cowslip_frozen *second = NULL;
    if (getenv("COWSLIP_TEST_PLAIN") != NULL) {
        // Without userfaultfd there is one view at a time.
        FAILS(COWSLIP_BUSY, cowslip_freeze(arena, 0, &second, &why), "there is a view of the last freeze");
    } else {
        OK(cowslip_freeze(arena, 0, &second, &why));
        go_back(arena, words, view, second);
    }
    fill(words, COUNT, 100);
    const uint64_t *then = cowslip_frozen_view(view, words);
    CHECK(holds(then, COUNT, 1) && holds(words, COUNT, 100));
    CHECK(cowslip_frozen_view(view, &why) == NULL);
    CHECK(cowslip_frozen_view(NULL, words) == NULL);
    cowslip_frozen_free(view);

    OK(cowslip_discard(arena, words, 2 * MIB, &why));
    CHECK(words[0] == 0 && words[COUNT - 1] == 100 + COUNT - 1);
    void *more = NULL;
    OK(cowslip_alloc(arena, 100, &more, &why));
    memset(more, 1, 100);
    char on_the_stack;
    FAILS(COWSLIP_USAGE, cowslip_dealloc(arena, (char *)more + 1, 100, &why), "begin at a page");
    FAILS(COWSLIP_USAGE, cowslip_discard(arena, (char *)more + 1, 100, &why), "begin at a page");
    FAILS(COWSLIP_USAGE, cowslip_dealloc(arena, more, SIZE_MAX, &why), "end of memory");
    FAILS(COWSLIP_USAGE, cowslip_dealloc(arena, more, 64 * MIB, &why), "not of this arena");
    FAILS(COWSLIP_USAGE, cowslip_dealloc(arena, more, MIB, &why), "never allocated");
    void *page = (void *)((uintptr_t)&on_the_stack & ~(uintptr_t)4095);
    FAILS(COWSLIP_USAGE, cowslip_dealloc(arena, page, 100, &why), "not of this arena");
    OK(cowslip_dealloc(arena, more, 100, &why));
    FAILS(COWSLIP_USAGE, cowslip_dealloc(arena, more, 100, &why), "given back");
    FAILS(COWSLIP_USAGE, cowslip_discard(arena, more, 100, &why), "given back");
    OK(cowslip_alloc(arena, 0, &more, &why));
    OK(cowslip_dealloc(arena, more, 0, &why));

    if (getenv("COWSLIP_TEST_PLAIN") == NULL) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&threads[i], NULL, freeze_often, arena) == 0);
        for (uint64_t i = 0; i < 100; i++)
            fill(words, COUNT, i);
        for (int i = 0; i < 2; i++)
            CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK(holds(words, COUNT, 99));
    }

    char *json = NULL;
    OK(cowslip_metrics_json(arena, &json, &why));
    CHECK(json[0] == '{' && strstr(json, "\"freezes\":") != NULL);
    cowslip_text_free(json);
    if (getenv("COWSLIP_TEST_PLAIN") == NULL) {
        OK(cowslip_doctor_json(&json, &why));
        CHECK(strstr(json, "cowslip.doctor/1") != NULL);
        cowslip_text_free(json);
    }

    cowslip_arena *none = NULL;
    CHECK(cowslip_arena_new(0, NULL, &none, &why) == COWSLIP_USAGE);
    CHECK(strstr(cowslip_error_text(why), "capacity must be above zero") != NULL);
    CHECK(cowslip_error_advice(why) == NULL);
    cowslip_error_free(why);
    why = NULL;
    FAILS(COWSLIP_USAGE, cowslip_arena_new(MIB, NULL, NULL, &why), "arena is NULL");
    FAILS(COWSLIP_USAGE, cowslip_alloc(NULL, 1, &more, &why), "arena is NULL");
    FAILS(COWSLIP_USAGE, cowslip_alloc(arena, 1, NULL, &why), "memory is NULL");
    CHECK(cowslip_alloc(arena, 65 * MIB, &more, &why) == COWSLIP_OUT_OF_MEMORY);
    CHECK(strncmp(cowslip_error_text(why), "cannot allocate", 15) == 0);
    CHECK(strstr(cowslip_error_text(why), "the arena is full") != NULL);
    CHECK(strstr(cowslip_error_advice(why), "capacity") != NULL);
    CHECK(strstr(cowslip_error_text(why), cowslip_error_advice(why)) == NULL);
    cowslip_error_free(why);
    why = NULL;
    FAILS(COWSLIP_USAGE, cowslip_freeze(arena, 0, NULL, &why), "frozen is NULL");
    CHECK(cowslip_freeze(NULL, 0, &view, NULL) == COWSLIP_USAGE);
    cowslip_arena_options options;
    memset(&options, 0, sizeof options);
    FAILS(COWSLIP_USAGE, cowslip_arena_new(MIB, &options, &none, &why), "size");
    options.size = sizeof(struct cowslip_arena_options);
    options.backing = 77;
    FAILS(COWSLIP_USAGE, cowslip_arena_new(MIB, &options, &none, &why), "77");
    options.backing = COWSLIP_BACKING_BASE;
    options.address = ((size_t)1 << 40) + 4096;
    FAILS(COWSLIP_USAGE, cowslip_arena_new(MIB, &options, &none, &why), "1 GiB");
    options.address = 0;
    if (is_empty_pool()) {
        options.backing = COWSLIP_BACKING_HUGETLB;
        CHECK(cowslip_arena_new(2 * MIB, &options, &none, &why) == COWSLIP_OUT_OF_MEMORY);
        CHECK(strstr(cowslip_error_advice(why), "vm.nr_hugepages") != NULL);
        cowslip_error_free(why);
        why = NULL;
    }
    struct { cowslip_arena_options known; uint64_t later; } newer;
    memset(&newer, 0, sizeof newer);
    newer.known.size = sizeof newer;
    OK(cowslip_arena_new(2 * MIB, &newer.known, &none, &why));
    cowslip_arena_free(none);
    newer.later = 1;
    FAILS(COWSLIP_USAGE, cowslip_arena_new(MIB, &newer.known, &none, &why), "too old");
    CHECK(cowslip_error_errno(NULL) == 0 && cowslip_error_advice(NULL) == NULL);
    CHECK(cowslip_error_text(NULL)[0] == '\0');
    cowslip_error_free(NULL);
    cowslip_text_free(NULL);
    cowslip_frozen_free(NULL);
    cowslip_template_free(NULL);
    cowslip_clone_free(NULL);
    cowslip_arena_free(NULL);

    OK(cowslip_dealloc(arena, words, COUNT * sizeof *words, &why));
    cowslip_arena_free(arena);
    return 0;
}
