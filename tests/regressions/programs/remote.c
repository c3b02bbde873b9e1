// Fills memory on the first processor, and reads it there or on the second: remote 0|1 MIB TIMES.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int move_to(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return sched_setaffinity(0, sizeof set, &set);
}

int main(int argc, char **argv) {
  int processor = argc > 1 ? atoi(argv[1]) : 0;
  size_t bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 64) << 20;
  int times = argc > 3 ? atoi(argv[3]) : 100;
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || move_to(0))
    return 1;
  memset(memory, 1, bytes);
  if (move_to(processor))
    return 1;
  size_t sum = 0;
  for (int i = 0; i < times; i++)
    for (size_t at = 0; at < bytes; at += 64)
      sum += *(volatile unsigned char *)(memory + at);
  printf("%zu\n", sum);
  return 0;
}
