// Computes a little, and sleeps in between: pauses MICROSECONDS TIMES.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
  long pause = argc > 1 ? atol(argv[1]) : 0;
  int times = argc > 2 ? atoi(argv[2]) : 400;
  unsigned long sum = 1;
  for (int i = 0; i < times; i++) {
    for (int j = 0; j < 50000; j++)
      sum = sum * 6364136223846793005u + 1442695040888963407u;
    struct timespec time = {0, pause * 1000};
    if (pause)
      nanosleep(&time, NULL);
  }
  printf("%lu\n", sum);
  return 0;
}
