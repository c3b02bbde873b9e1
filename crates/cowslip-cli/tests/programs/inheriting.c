/* Words that the kernel itself writes in a call: mutexes with priority inheritance, FUTEX_LOCK_PI, FUTEX_WAKE_OP. Natively and
 * under Cowslip it has to print the same. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

static pthread_mutex_t *mutex;
static int *owned, *written, *waited;
static long count[2], refused;

static void *locks(void *of) {
  long *mine = of;
  for (int i = 0; i < 20000; i++) {
    if (pthread_mutex_lock(mutex)) abort();
    ++*mine;
    if (pthread_mutex_unlock(mutex)) abort();
  }
  return NULL;
}

static void forks(char *m) {
  int status;
  pid_t pid = fork();
  if (pid == 0) _exit(m[60 * MIB] == 1 ? 0 : 1);
  waitpid(pid, &status, 0);
  if (status) printf("child %d\n", status);
}

static void calls(void) {
  int add = FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, -1);
  refused += syscall(SYS_futex, owned, FUTEX_LOCK_PI | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0) != 0;
  refused += syscall(SYS_futex, owned, FUTEX_UNLOCK_PI | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0) != 0;
  refused += syscall(SYS_futex, waited, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 1, (void *)1ul, written, add) != 0;
}

int main(void) {
  char *m = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  m = (char *)(((size_t)m + 2 * MIB - 1) & ~(2 * MIB - 1));
  memset(m, 0, 62 * MIB);
  m[60 * MIB] = 1;
  alarm(60);
  /* A chunk each. */
  mutex = (pthread_mutex_t *)m;
  owned = (int *)(m + 2 * MIB);
  written = (int *)(m + 4 * MIB);
  waited = (int *)(m + 6 * MIB);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
  pthread_mutex_init(mutex, &attributes);
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, locks, &count[i]);
  for (int i = 0; i < 20; i++) {
    calls();
    forks(m);
  }
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  printf("%ld and %ld locked, %d written, %ld refused\n", count[0], count[1], *written, refused);
  return 0;
}
