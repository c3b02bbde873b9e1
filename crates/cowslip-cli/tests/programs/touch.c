/* touch N [MS]: maps 4 MiB of base pages, writes to each page and unmaps, N times; then it sleeps MS milliseconds. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
    size_t length = 4 << 20, page = (size_t)sysconf(_SC_PAGESIZE);
    for (int left = argc > 1 ? atoi(argv[1]) : 0; left > 0; left--) {
        char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || madvise(memory, length, MADV_NOHUGEPAGE) != 0)
            return 1;
        for (size_t at = 0; at < length; at += page)
            memory[at] = 1;
        if (munmap(memory, length) != 0)
            return 1;
    }
    return usleep(argc > 2 ? atoi(argv[2]) * 1000 : 0) == 0 ? 0 : 1;
}
