/* What the tests in C share: a call that must succeed, one that must not, a condition that must hold. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cowslip.h"

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                     \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

static cowslip_error *why;

/* A name that C does not have. */
static inline int is_of_rust(const char *text)
{
    return text != NULL && (strstr(text, "::") != NULL || strstr(text, "(..)") != NULL);
}

#define OK(call)                                                                                \
    do {                                                                                        \
        cowslip_status status_ = (call);                                                        \
        if (status_ != COWSLIP_OK) {                                                            \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                       \
                    cowslip_error_text(why));                                                   \
            exit(1);                                                                            \
        }                                                                                       \
        CHECK(why == NULL);                                                                     \
    } while (0)

#define FAILS(status, call, text)                                                               \
    do {                                                                                        \
        CHECK((call) == (status));                                                              \
        CHECK(why != NULL);                                                                     \
        if (strstr(cowslip_error_text(why), (text)) == NULL) {                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cowslip_error_text(why));        \
            exit(1);                                                                            \
        }                                                                                       \
        CHECK(!is_of_rust(cowslip_error_text(why)));                                            \
        CHECK(!is_of_rust(cowslip_error_advice(why)));                                          \
        cowslip_error_free(why);                                                                \
        why = NULL;                                                                             \
    } while (0)

#define MIB ((size_t)1 << 20)

/* Without userfaultfd where COWSLIP_TEST_PLAIN is set: a thread that waits for a fault stops all of valgrind. */
static inline cowslip_arena *arena_of(uint64_t capacity)
{
    cowslip_arena_options options;
    cowslip_arena *arena = NULL;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.no_userfaultfd = getenv("COWSLIP_TEST_PLAIN") != NULL;
    OK(cowslip_arena_new(capacity, &options, &arena, &why));
    return arena;
}

static inline uint64_t *words_of(cowslip_arena *arena, size_t bytes)
{
    void *memory = NULL;
    OK(cowslip_alloc(arena, bytes, &memory, &why));
    return memory;
}

static inline void fill(uint64_t *words, size_t count, uint64_t with)
{
    for (size_t i = 0; i < count; i++)
        words[i] = with + i;
}

static inline int holds(const uint64_t *words, size_t count, uint64_t with)
{
    for (size_t i = 0; i < count; i++)
        if (words[i] != with + i)
            return 0;
    return 1;
}

#endif
