// Draws random numbers, then again for a line of its input: of each source a line `kind name number`.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

extern unsigned int arc4random(void) __attribute__((weak));

static void say(const char *name, unsigned long number) {
    if (name) printf("%s %016lx\n", name, number);
}

static void draw(int says) {
    unsigned long number = 0;
    if (getrandom(&number, sizeof number, 0) == sizeof number) say(says ? "kernel getrandom" : NULL, number);
    int file = open("/dev/urandom", O_RDONLY);
    if (read(file, &number, sizeof number) == sizeof number) say(says ? "kernel /dev/urandom" : NULL, number);
    close(file);
    if (arc4random) say(says ? "kernel arc4random" : NULL, (unsigned long)arc4random() << 32 | arc4random());
    say(says ? "seed rand" : NULL, rand());
    say(says ? "seed drand48" : NULL, lrand48());
}

int main(void) {
    char line[16];
    srand(1);
    draw(0);
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    draw(1);
    return 0;
}
