// A program that takes the address of malloc, for a build that is not position-independent. Prints malloc's figures.
#define _GNU_SOURCE
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    // The address in code, not in data: the program's own symbol table has an entry for it.
    void *(*volatile allocate)(size_t) = malloc;
    for (int i = 0; i < 64; i++)
        memset(allocate(1 << 20), 1, 1 << 20);
    malloc_stats();
    return 0;
}
