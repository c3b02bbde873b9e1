/* work KIND MIB FILE: works for ever, and writes the units that it has done into FILE. All hold as much memory.
 *
 * random     reads all of it at random, each read where the one before it says
 * mixed      the same, with as much time for computing
 * writes     adds to numbers at random places
 * registers  computes, and reads nothing
 * hot        reads 64 KiB of it at random
 * calls      asks the kernel for a number */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REGION (2ul << 20)

int main(int count, char **words) {
  if (count != 4)
    return 2;
  char kind = words[1][0];
  size_t bytes = strtoul(words[2], 0, 10) << 20, last = bytes / 8 - 1;
  int file = open(words[3], O_WRONLY | O_CREAT | O_TRUNC, 0644);
  char *at = mmap(0, bytes + REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint64_t *memory = (uint64_t *)(((uintptr_t)at + REGION - 1) & ~(REGION - 1));
  for (size_t i = 0; i <= last; i++)
    memory[i] = i + 1;
  if (kind == 'h')
    last = (64 << 10) / 8 - 1;
  int reads = kind == 'h' || kind == 'm' || (kind == 'r' && words[1][1] == 'a');
  int computes = kind == 'm' ? 80 : kind == 'r' && !reads ? 40 : 0;
  uint64_t random = 88172645463325252ull, sum = 0;
  for (size_t units = 1;; units++) {
    for (int step = 0; step < 20000; step++) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      if (reads)
        sum += memory[(random + sum) & last];
      if (kind == 'w')
        memory[random & last] += random;
      if (kind == 'c' && step % 10 == 0)
        sum += syscall(SYS_getppid);
      for (int i = 0; i < computes; i++)
        sum = sum * 6364136223846793005ull + random;
    }
    char text[32];
    int length = snprintf(text, sizeof text, "%020zu %d\n", units, sum == 42);
    if (pwrite(file, text, length, 0) != length)
      return 1;
  }
}
