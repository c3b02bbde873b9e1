// Writes to each page of some memory again and again: touch MIB TIMES.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
  size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 96) << 20;
  int times = argc > 2 ? atoi(argv[2]) : 2;
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return 1;
  for (int i = 0; i < times; i++)
    for (size_t at = 0; at < bytes; at += 4096)
      // What compresses well, and is not the same in all of a page.
      *(size_t *)(memory + at) = at + (size_t)i;
  printf("%d\n", memory[bytes / 2]);
  return 0;
}
