// What a forked child maps is its own: given back it reads zeroes or is gone, also after its parent's end.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 40 };
static const size_t LENGTH = 64 << 20;

static char *map(char content) {
    char *it = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (it != MAP_FAILED) *it = content;
    return it;
}

static int wrong(int parents_end) {
    char *maps[COUNT], more, residence;
    int lost = 0, stale = 0, left = 0;
    for (int i = 0; i < COUNT; i++) maps[i] = map(7);
    if (parents_end >= 0) {
        if (read(parents_end, &more, 1) != 0) return 1;
        map(1); // the child may become the owner of its memory here
    }
    for (int i = 0; i < COUNT; i++) lost += *maps[i] != 7;
    for (int i = 0; i < COUNT; i++) stale += madvise(maps[i], LENGTH, MADV_DONTNEED) != 0 || *maps[i] != 0;
    for (int i = 0; i < COUNT; i++)
        left += munmap(maps[i], LENGTH) != 0 || mincore(maps[i], 4096, (void *)&residence) == 0;
    if (lost || stale || left) fprintf(stderr, "of %d: %d lost, %d stale, %d left\n", COUNT, lost, stale, left);
    return lost || stale || left;
}

int main(int count, char **args) {
    int to_child[2], to_watcher[2], status = 0;
    char answer = 1;
    if (count != 2 || pipe(to_child) || pipe(to_watcher)) return 2;
    if (strcmp(args[1], "child") == 0) {
        memset(map(0), 1, LENGTH);
        if (fork() == 0) _exit(wrong(-1));
        return wait(&status) < 0 || status != 0;
    }
    if (fork() == 0) { // the parent that ends
        memset(map(0), 1, LENGTH);
        if (fork() == 0) {
            close(to_child[1]);
            answer = (char)wrong(to_child[0]);
            _exit(write(to_watcher[1], &answer, 1) != 1);
        }
        _exit(0);
    }
    wait(&status);
    close(to_child[1]);
    close(to_watcher[1]);
    return read(to_watcher[0], &answer, 1) != 1 || answer != 0;
}
