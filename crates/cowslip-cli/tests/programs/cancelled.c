/* A thread that is to end at the next cancellation point (`pthreads(7)`): fopen(3) is one, memory calls and forks are none.
 * Natively and under Cowslip it has to print the same. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

static volatile int got_to;
static volatile pid_t child;

static void *is_cancelled(void *unused) {
  pthread_cancel(pthread_self());
  /* The first memory that is worth an arena. */
  char *m = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  got_to = 1;
  memset(m, 1, 64 * MIB);
  child = fork();
  if (child == 0) _exit(m[MIB] == 1 ? 0 : 1);
  got_to = 2;
  m[3 * MIB] = 2;
  for (int i = 0; i < 100; i++) {
    char *some = malloc(MIB);
    some[0] = 1;
    free(some);
    char *more = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(more, MIB, PROT_READ);
    madvise(more, 4 * MIB, MADV_DONTNEED);
    munmap(more, 4 * MIB);
  }
  got_to = 3;
  fopen("/dev/null", "r");
  got_to = 4;
  return unused;
}

int main(void) {
  pthread_t thread;
  void *answer = NULL;
  int status = -1;
  alarm(60);
  pthread_create(&thread, NULL, is_cancelled, NULL);
  pthread_join(thread, &answer);
  printf("it got to %d and was %s\n", got_to, answer == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
  if (child > 0) waitpid(child, &status, 0);
  printf("its child: %d\n", status);
  return 0;
}
