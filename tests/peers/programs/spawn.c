// Every way to start a program, from a process with much memory, which must be whole afterwards.
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
enum { TURNS = 60, WORDS = 32 << 20 };
static uint32_t *data;
static char *const HELLO[] = {"sh", "-c", "exit 7", NULL};

static void fill(uint32_t turn) {
    for (size_t i = 0; i < WORDS; i += 256) data[i] = (uint32_t)i ^ turn;
}

static int is_whole(uint32_t turn) {
    for (size_t i = 0; i < WORDS; i += 256)
        if (data[i] != ((uint32_t)i ^ turn)) return 0;
    return 1;
}

static int exited(pid_t pid) {
    int status = 0;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int by_posix_spawn(void) {
    pid_t pid;
    return posix_spawnp(&pid, "sh", NULL, NULL, HELLO, environ) == 0 && exited(pid) == 7;
}

static int by_vfork(void) {
    volatile int shared = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        shared = 1;
        data[1] = 42;
        execvp("sh", HELLO);
        _exit(1);
    }
    return exited(pid) == 7 && shared == 1 && data[1] == 42;
}

static int by_system(void) { return system("exit 7") == 7 << 8; }

static int by_popen(void) {
    char line[16] = "";
    FILE *in = popen("echo hello; exit 7", "r");
    return in && fgets(line, sizeof line, in) && strcmp(line, "hello\n") == 0 && pclose(in) == 7 << 8;
}

static int by_fork_exec(void) {
    pid_t pid = fork();
    if (pid == 0) {
        data[0]++;
        execvp("sh", HELLO);
        _exit(1);
    }
    return exited(pid) == 7;
}

static void *fork_in_thread(void *good) {
    for (int i = 0; i < TURNS; i++) {
        char *block = malloc(300000);
        memset(block, i, 300000);
        pid_t pid = fork();
        if (pid == 0) _exit(block[299999] == i && is_whole(9) ? 7 : 1);
        if (exited(pid) != 7) return NULL;
        free(block);
    }
    return good;
}

static int by_threads(void) {
    pthread_t threads[4];
    int good = 1;
    fill(9);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, fork_in_thread, &good);
    for (int i = 0; i < 4; i++) {
        void *answer = NULL;
        pthread_join(threads[i], &answer);
        good &= answer != NULL;
    }
    return good && is_whole(9);
}

int main(int count, char **args) {
    static const struct { const char *name; int (*start)(void); int turns; } ways[] = {
        {"posix_spawn", by_posix_spawn, TURNS}, {"vfork", by_vfork, TURNS}, {"system", by_system, TURNS},
        {"popen", by_popen, TURNS}, {"fork_exec", by_fork_exec, TURNS}, {"threads", by_threads, 1},
    };
    data = malloc(WORDS * sizeof *data);
    for (size_t way = 0; count == 2 && way < sizeof ways / sizeof *ways; way++) {
        if (strcmp(ways[way].name, args[1]) != 0) continue;
        for (int turn = 0; turn < ways[way].turns; turn++) {
            uint32_t seed = ways[way].turns == 1 ? 9 : (uint32_t)turn;
            fill(seed);
            if (!ways[way].start() || !is_whole(seed)) return fprintf(stderr, "turn %d\n", turn), 1;
        }
        return 0;
    }
    return 2;
}
