// The program that is dumped and restored, and the one that asks it: see CONTRIBUTING.md.
//   subject run MIB           fills MIB of memory, then answers what comes through the pipes
//   subject ask page N        reads the N-th page
//   subject ask some          reads a tenth of all pages, scattered, in an order that is always the same
//   subject ask all           reads every page
//   subject ask fork          has a child read every page, while the parent does
//   subject now               the monotonic clock
// An answer is one line: nanoseconds of the clock when it was ready, pages read, pages that were wrong,
// nanoseconds that half of the reads took at most, and that 99 of 100 took.
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / 8)
#ifndef FOLDER
#define FOLDER "/run/"
#endif
#define ASK FOLDER "subject.ask"
#define ANSWER FOLDER "subject.answer"

struct question {
    uint64_t kind, number;
};

struct answer {
    uint64_t at_ns, pages, wrong, half_ns, most_ns;
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
    return x ^ (x >> 29);
}

// Half of a page is noise, half repeats: what a store's memory compresses like.
static uint64_t word(uint64_t page, uint64_t i) {
    return i % 2 ? page : mixed(page * WORDS + i + 1);
}

static void fill(uint64_t *memory, uint64_t page) {
    for (uint64_t i = 0; i < WORDS; i++)
        memory[page * WORDS + i] = word(page, i);
}

// Was never written, and must read as zeroes: much in one piece, and single pages.
static int is_empty(uint64_t page) { return (page >> 8) % 7 == 3 || page % 513 == 7; }

static int is_wrong(const volatile uint64_t *memory, uint64_t page) {
    for (uint64_t i = 0; i < WORDS; i++)
        if (memory[page * WORDS + i] != (is_empty(page) ? 0 : word(page, i)))
            return 1;
    return 0;
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static struct answer read_pages(const uint64_t *memory, uint64_t pages, struct question asked) {
    static uint64_t took[1 << 20];
    struct answer answer = {0};
    uint64_t count = asked.kind == 'p' ? 1 : asked.kind == 's' ? pages / 10 : pages;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t page = asked.kind == 'p' ? asked.number : i;
        // A tenth, in 16 places: neighbours within a place, in an order of their own.
        if (asked.kind == 's') {
            uint64_t at = i * 40503 % count, place = count / 16 + 1;
            page = at / place * (pages / 16) + at % place;
        }
        uint64_t began = now_ns();
        (void)*(const volatile uint64_t *)(memory + page * WORDS);
        took[i] = now_ns() - began;
        answer.wrong += is_wrong(memory, page);
    }
    qsort(took, count, sizeof took[0], by_size);
    answer.pages = count;
    answer.half_ns = took[count / 2];
    answer.most_ns = took[count * 99 / 100];
    return answer;
}

static void whole(ssize_t done, size_t wanted, const char *what) {
    if (done != (ssize_t)wanted) {
        perror(what);
        exit(1);
    }
}

static int run(uint64_t mebibytes) {
    uint64_t pages = mebibytes << 8;
    uint64_t *memory = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || pages > 1 << 20)
        return 1;
    madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
    for (uint64_t page = 0; page < pages; page++)
        if (!is_empty(page))
            fill(memory, page);
    int ask = open(ASK, O_RDWR), answers = open(ANSWER, O_RDWR);
    if (ask < 0 || answers < 0)
        return 1;
    for (;;) {
        struct question asked;
        whole(read(ask, &asked, sizeof asked), sizeof asked, "read");
        pid_t child = asked.kind == 'f' ? fork() : -1;
        struct answer answer = read_pages(memory, pages, asked);
        if (child == 0)
            _exit(answer.wrong != 0);
        int status = 0;
        if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
            answer.wrong++;
        whole(write(answers, &answer, sizeof answer), sizeof answer, "write");
    }
}

static int ask(char **words) {
    struct question asked = {words[0][0], words[1] ? strtoull(words[1], 0, 10) : 0};
    struct answer answer;
    int questions = open(ASK, O_RDWR), answers = open(ANSWER, O_RDWR);
    whole(write(questions, &asked, sizeof asked), sizeof asked, "write");
    whole(read(answers, &answer, sizeof answer), sizeof answer, "read");
    // CRIU restores the program's clocks as they were; the time is this process'.
    answer.at_ns = now_ns();
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", answer.at_ns, answer.pages,
           answer.wrong, answer.half_ns, answer.most_ns);
    return answer.wrong != 0;
}

int main(int count, char **words) {
    if (count == 3 && strcmp(words[1], "run") == 0)
        return run(strtoull(words[2], 0, 10));
    if (count >= 3 && strcmp(words[1], "ask") == 0)
        return ask(words + 2);
    if (count == 2 && strcmp(words[1], "now") == 0)
        return printf("%" PRIu64 "\n", now_ns()) < 0;
    return 2;
}
