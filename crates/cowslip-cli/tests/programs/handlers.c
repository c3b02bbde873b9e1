/* Forks while other threads use a library that has handlers of its own around forks. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

void library_works(void);

static volatile int is_over;

static void *works(void *unused) {
  while (!is_over) library_works();
  return unused;
}

int main(void) {
  char *m = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(m, 1, 64 * MIB);
  alarm(60);
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, works, NULL);
  for (int i = 0; i < 100; i++) {
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
      library_works();
      _exit(m[MIB] == 1 ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    if (status) return 1;
  }
  is_over = 1;
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  puts("forked");
  return 0;
}
