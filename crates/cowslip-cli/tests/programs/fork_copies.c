// Prints how many pages a fork had this process map or copy, the least of several. With any argument, another
// thread has used malloc before.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64 << 20, FORKS = 20 };

static long faults(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_minflt : -1;
}

static void *allocate(void *unused) {
    (void)unused;
    free(malloc(1));
    return NULL;
}

int main(int count, char **words) {
    (void)words;
    char *some = malloc(BYTES);
    if (!some) return 2;
    memset(some, 1, BYTES);
    if (count > 1) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, allocate, NULL) != 0) return 2;
        if (pthread_join(thread, NULL) != 0) return 2;
    }
    long least = -1;
    for (int i = 0; i < FORKS; i++) {
        long before = faults();
        pid_t child = fork();
        if (child < 0) return 2;
        if (child == 0) _exit(0);
        long copied = faults() - before;
        if (waitpid(child, NULL, 0) != child) return 2;
        if (least < 0 || copied < least) least = copied;
    }
    printf("%ld\n", least);
    return 0;
}
