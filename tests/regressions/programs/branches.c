// Counts the large ones of many numbers, sorted or as they come: branches sorted|random TIMES.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS = 1 << 16 };

static int numbers[NUMBERS];
static volatile long large;

static int ascending(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

__attribute__((noinline)) static void count_large(void) {
  for (int i = 0; i < NUMBERS; i++)
    if (numbers[i] >= 1 << 14)
      large++;
}

int main(int argc, char **argv) {
  int times = argc > 2 ? atoi(argv[2]) : 1000;
  unsigned state = 1;
  for (int i = 0; i < NUMBERS; i++) {
    state = state * 1103515245 + 12345;
    numbers[i] = state >> 17;
  }
  if (argc > 1 && !strcmp(argv[1], "sorted"))
    qsort(numbers, NUMBERS, sizeof *numbers, ascending);
  for (int i = 0; i < times; i++)
    count_large();
  printf("%ld\n", large);
  return 0;
}
