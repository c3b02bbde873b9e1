/* work random|registers MIB FILE: works for ever, and writes the units that it has done into FILE.
 * Both hold the same memory. One reads it at random, the other computes in registers. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGION (2ul << 20)

int main(int count, char **words) {
  if (count != 4)
    return 2;
  int reads = !strcmp(words[1], "random");
  size_t bytes = strtoul(words[2], 0, 10) << 20, last = bytes / 8 - 1;
  int file = open(words[3], O_WRONLY | O_CREAT | O_TRUNC, 0644);
  char *at = mmap(0, bytes + REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint64_t *memory = (uint64_t *)(((uintptr_t)at + REGION - 1) & ~(REGION - 1));
  for (size_t i = 0; i <= last; i++)
    memory[i] = i + 1;
  uint64_t random = 88172645463325252ull, sum = 0;
  for (size_t units = 1;; units++) {
    for (int step = 0; step < 20000; step++) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      if (reads)
        sum += memory[(random + sum) & last];
      else
        for (int i = 0; i < 40; i++)
          sum = sum * 6364136223846793005ull + random;
    }
    char text[32];
    int length = snprintf(text, sizeof text, "%020zu %d\n", units, sum == 42);
    if (pwrite(file, text, length, 0) != length)
      return 1;
  }
}
