// A library that counts calls for memory and passes them on, each by a lookup at its first call. With SOME it has
// `malloc` and `free` alone, with ONE `free`. With DIRECT it also has a `munmap` that makes the system call, as tcmalloc
// has.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_long calls;

#define PASSED_ON(result, name, parameters, arguments)         \
    result name parameters {                                   \
        static result(*_Atomic next) parameters;               \
        if (!next)                                             \
            next = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
        calls++;                                               \
        return next arguments;                                 \
    }

#ifndef ONE
PASSED_ON(void *, malloc, (size_t size), (size))
#endif
PASSED_ON(void, free, (void *block), (block))

#if !defined SOME && !defined ONE
PASSED_ON(void *, realloc, (void *block, size_t size), (block, size))
PASSED_ON(int, posix_memalign, (void **place, size_t alignment, size_t size), (place, alignment, size))
PASSED_ON(void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size))
PASSED_ON(size_t, malloc_usable_size, (void *block), (block))

static char early[4096];
static size_t early_used;

// A lookup may ask for memory: it gets this, which is never freed.
void *calloc(size_t count, size_t size) {
    static void *(*_Atomic next)(size_t, size_t);
    static _Atomic int looks;
    if (!next) {
        if (looks) {
            void *block = early + early_used;
            early_used += (count * size + 15) & ~15UL;
            return block;
        }
        looks = 1;
        next = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    }
    calls++;
    return next(count, size);
}
#endif

#ifdef DIRECT
int munmap(void *start, size_t size) { return (int)syscall(SYS_munmap, start, size); }
#endif

__attribute__((destructor)) static void tell(void) {
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (munmap(page, 4096))
        calls = 0;
    fprintf(stderr, "interposed: %s\n", calls > 0 ? "yes" : "no");
}
