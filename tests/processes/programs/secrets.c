// Keeps values that only its memory and a file have: secrets FOLDER [secretmem]. For each line of its input it says that it has
// them still.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, BYTES = 2048 };

static char *places[3];
static const char *names[3] = {"public", "dontdump", "secretmem"};

// Fills a place, and the file of its name, without another copy.
static void plant(const char *folder, int i, char *place) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int at = 0; at < BYTES; at += 256)
        if (getrandom(place + at, 256, 0) != 256) exit(2);
    if (write(file, place, BYTES) != BYTES) exit(3);
    close(file);
    places[i] = place;
}

int main(int count, char **words) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *both = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (both == MAP_FAILED || madvise(both + PAGE, PAGE, MADV_DONTDUMP)) return 4;
    plant(words[1], 0, both);
    plant(words[1], 1, both + PAGE);
    if (count > 2) {
        int file = syscall(SYS_memfd_secret, 0);
        if (file < 0 || ftruncate(file, PAGE)) return 5;
        char *secret = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (secret == MAP_FAILED) return 6;
        // As libraries do: the mapping stays.
        close(file);
        plant(words[1], 2, secret);
    }
    puts("ready");
    fflush(stdout);
    for (char line[16]; fgets(line, sizeof line, stdin);) {
        int are_there = 1;
        for (int i = 0; i < 3 && places[i]; i++) {
            char path[4096], bytes[1];
            snprintf(path, sizeof path, "%s/%s", words[1], names[i]);
            int file = open(path, O_RDONLY);
            for (int at = 0; at < BYTES; at++) are_there &= read(file, bytes, 1) == 1 && *bytes == places[i][at];
            close(file);
        }
        puts(are_there ? "kept" : "lost");
        fflush(stdout);
    }
    return 0;
}
