/* A program of 6 MiB of text, all of which it executes for each line of its standard input. */
#include <stdio.h>

__asm__(".text\n"
        ".globl walk\n"
        "walk:\n"
#ifdef __x86_64__
        ".fill 6291456, 1, 0x90\n"
#else
        ".fill 1572864, 4, 0xd503201f\n"
#endif
        "ret\n");

void walk(void);

int main(void) {
  char line[80];
  while (fgets(line, sizeof line, stdin)) {
    walk();
    puts("walked");
    fflush(stdout);
  }
  return 0;
}
