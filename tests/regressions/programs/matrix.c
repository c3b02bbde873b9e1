// Adds up a matrix in the order of memory, or across it: matrix rows|columns TIMES.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 2048 };

static volatile int matrix[SIDE][SIDE];

__attribute__((noinline)) static long add_up(int across) {
  long sum = 0;
  for (int i = 0; i < SIDE; i++)
    for (int j = 0; j < SIDE; j++)
      sum += across ? matrix[j][i] : matrix[i][j];
  return sum;
}

int main(int argc, char **argv) {
  int across = argc > 1 && !strcmp(argv[1], "columns");
  int times = argc > 2 ? atoi(argv[2]) : 10;
  memset((int *)matrix, 1, sizeof matrix);
  long sum = 0;
  for (int i = 0; i < times; i++)
    sum += add_up(across);
  printf("%ld\n", sum);
  return 0;
}
