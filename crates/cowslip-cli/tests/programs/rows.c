// Reads rows, which takes the argument's time, and saves, which takes the same time always.
#include <stdio.h>
#include <stdlib.h>

static volatile unsigned sum;

__attribute__((noinline)) static void parse_row(int work) {
    unsigned hash = 0;
    for (int step = 0; step < work; step++) hash = hash * 31 + (unsigned)step;
    sum += hash;
}

__attribute__((noinline)) static void load(int work) {
    for (int row = 0; row < 100; row++) parse_row(work);
}

__attribute__((noinline)) static void save(void) {
    unsigned hash = 0;
    for (int step = 0; step < 20000000; step++) hash = hash * 37 + (unsigned)step;
    sum += hash;
}

int main(int count, char **words) {
    if (count != 2) return 2;
    load(atoi(words[1]));
    save();
    return 0;
}
