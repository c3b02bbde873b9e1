// Computes: work ROUNDS (of a millisecond or so with -O2).
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  int rounds = argc > 1 ? atoi(argv[1]) : 100;
  static unsigned table[4096];
  unsigned long sum = 0;
  for (int round = 0; round < rounds; round++)
    for (int pass = 0; pass < 100; pass++)
      for (int i = 0; i < 4096; i++) {
        table[i] = table[i] * 2654435761u + (unsigned)(i ^ pass);
        sum += table[i] >> 7;
      }
  printf("%lu\n", sum);
  return 0;
}
