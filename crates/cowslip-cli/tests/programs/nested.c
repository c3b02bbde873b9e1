/* Touches pages in a function that others call: outer, middle, inner. */
#include <stddef.h>
#include <sys/mman.h>

enum { PAGES = 2000, PAGE = 4096 };

__attribute__((noinline)) static void inner(volatile char *memory, int page) {
    memory[(size_t)page * PAGE] = 1;
}

__attribute__((noinline)) static int middle(volatile char *memory, int pages) {
    /* A frame whose size is not known before it runs. */
    volatile char beside[pages % 100 + 100];
    for (int page = 0; page < pages; page++) {
        inner(memory, page);
        beside[page % 100] = (char)page;
    }
    return beside[0];
}

__attribute__((noinline)) static int outer(void) {
    size_t bytes = (size_t)PAGES * PAGE;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, bytes, MADV_NOHUGEPAGE)) return 2;
    return middle(memory, PAGES) * 0 + (memory[0] != 1);
}

int main(void) {
    return outer();
}
