/* Preloaded: 16 MiB in use before the daemon begins, so that a small one has an arena, too. */
#include <string.h>
#include <sys/mman.h>

enum { SIZE = 16 << 20 };

__attribute__((constructor)) static void begin(void) {
    void *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) memset(memory, 1, SIZE);
}
