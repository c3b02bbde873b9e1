// Uses every function of the malloc family, from threads, and across forks. Exit status 0 if each did
// what its man page says.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(it) \
    do { if (!(it)) { fprintf(stderr, "line %d: %s\n", __LINE__, #it); exit(1); } } while (0)

static int aligned_to(const void *pointer, size_t alignment) {
    return pointer != NULL && (uintptr_t)pointer % alignment == 0;
}

static void family(void) {
    char *text = malloc(1000);
    CHECK(aligned_to(text, 16) && malloc_usable_size(text) >= 1000);
    memset(text, 'x', 1000);
    text = realloc(text, 3 << 20);
    CHECK(text && text[0] == 'x' && text[999] == 'x');
    text = reallocarray(text, 10, 100);
    CHECK(text && text[999] == 'x');
    volatile size_t huge = SIZE_MAX / 2;
    errno = 0;
    CHECK(reallocarray(text, huge, 4) == NULL && errno == ENOMEM);
    free(text);
    long *zeroes = calloc(1 << 16, sizeof(long));
    CHECK(zeroes);
    for (int i = 0; i < 1 << 16; i++) CHECK(zeroes[i] == 0);
    free(zeroes);
    CHECK(calloc(huge, 4) == NULL);
    for (size_t alignment = 16; alignment <= 1 << 21; alignment *= 2) {
        void *place = NULL;
        CHECK(posix_memalign(&place, alignment, 100) == 0 && aligned_to(place, alignment));
        free(place);
        CHECK(aligned_to(place = aligned_alloc(alignment, alignment), alignment));
        free(place);
        CHECK(aligned_to(place = memalign(alignment, 100), alignment));
        free(place);
    }
    void *place;
    CHECK(posix_memalign(&place, 3, 100) == EINVAL);
    CHECK(aligned_to(place = memalign(48, 100), 64));
    free(place);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CHECK(aligned_to(place = valloc(1), page));
    free(place);
    CHECK(aligned_to(place = pvalloc(page + 1), page) && malloc_usable_size(place) >= 2 * page);
    free(place);
    free(NULL);
}

static void *churn(void *stop) {
    char *kept[64] = {0};
    unsigned seed = (unsigned)(uintptr_t)&kept;
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
        int i = rand_r(&seed) % 64;
        free(kept[i]);
        size_t size = 1 + rand_r(&seed) % 300000;
        CHECK(kept[i] = malloc(size));
        kept[i][0] = kept[i][size - 1] = 1;
    }
    for (int i = 0; i < 64; i++) free(kept[i]);
    return NULL;
}

static void in_a_child(void work(int), int forks) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        work(forks);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void use_malloc(int forks) {
    (void)forks;
    family();
}

// The other threads may be inside malloc at each fork.
static void fork_from_threads(int forks) {
    int stop = 0;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, churn, &stop) == 0);
    for (int i = 0; i < forks; i++) in_a_child(use_malloc, 0);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

// Children of one thread, some of which start their own, fork from them, and are alone again.
static void fork_alone(int forks) {
    for (int i = 0; i < forks; i++) {
        in_a_child(use_malloc, 0);
        in_a_child(fork_from_threads, 2);
    }
    family();
}

int main(void) {
    family();
    fork_alone(5);
    in_a_child(fork_alone, 2);
    fork_from_threads(50);
    fork_alone(5);
    in_a_child(fork_alone, 2);
    return 0;
}
