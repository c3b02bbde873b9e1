/* Has a thread wait in every way in which another process could wake it, forks, and wakes it. Natively and under Cowslip
 * it has to print the same. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

struct all {
  sem_t semaphore;
  pthread_mutex_t mutex;
  pthread_cond_t condition;
  pthread_rwlock_t lock;
  pthread_barrier_t barrier;
  int word;
  int is_set;
};

struct waitv {
  uint64_t value, address;
  uint32_t flags, reserved;
};

enum { SEMAPHORE, MUTEX, ROBUST, CONDITION, LOCK, BARRIER, WORD, BITSET, VECTOR, KINDS };
static const char *const names[KINDS] = {"semaphore", "mutex", "robust mutex", "condition", "lock", "barrier", "word", "bits of a word", "vector of words"};

static struct all *it;
static int kind;
static volatile int thread;

static void *waits(void *unused) {
  (void)unused;
  struct waitv words[1] = {{0, (uint64_t)&it->word, 2 /* 32 bits */, 0}};
  thread = syscall(SYS_gettid);
  switch (kind) {
    case SEMAPHORE: sem_wait(&it->semaphore); break;
    case MUTEX: case ROBUST: pthread_mutex_lock(&it->mutex); pthread_mutex_unlock(&it->mutex); break;
    case CONDITION:
      pthread_mutex_lock(&it->mutex);
      while (!it->is_set) pthread_cond_wait(&it->condition, &it->mutex);
      pthread_mutex_unlock(&it->mutex);
      break;
    case LOCK: pthread_rwlock_wrlock(&it->lock); pthread_rwlock_unlock(&it->lock); break;
    case BARRIER: pthread_barrier_wait(&it->barrier); break;
    case WORD: while (!*(volatile int *)&it->word) syscall(SYS_futex, &it->word, FUTEX_WAIT, 0, NULL, NULL, 0); break;
    case BITSET: while (!*(volatile int *)&it->word) syscall(SYS_futex, &it->word, FUTEX_WAIT_BITSET, 0, NULL, NULL, 1); break;
    case VECTOR:
      while (!*(volatile int *)&it->word)
        if (syscall(SYS_futex_waitv, words, 1, 0, NULL, 0) < 0 && errno == ENOSYS) sched_yield();
      break;
  }
  return NULL;
}

/* Until it sleeps, and in what it is to wait for: nothing else that it does lasts. */
static void wait_until_asleep(int id) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
  for (int asleep = 0; asleep < 20;) {
    FILE *file = fopen(path, "r");
    if (!file) return;
    size_t len = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[len] = 0;
    char *state = strrchr(text, ')');
    asleep = state && state[2] == 'S' ? asleep + 1 : 0;
    sched_yield();
  }
}

static void prepare(int shared) {
  pthread_mutexattr_t mutex;
  pthread_condattr_t condition;
  pthread_rwlockattr_t lock;
  pthread_barrierattr_t barrier;
  int how = shared ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE;
  pthread_mutexattr_init(&mutex);
  pthread_condattr_init(&condition);
  pthread_rwlockattr_init(&lock);
  pthread_barrierattr_init(&barrier);
  if (kind != ROBUST) pthread_mutexattr_setpshared(&mutex, how);
  if (kind == ROBUST && shared) pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST);
  pthread_condattr_setpshared(&condition, how);
  pthread_rwlockattr_setpshared(&lock, how);
  pthread_barrierattr_setpshared(&barrier, how);
  switch (kind) {
    case SEMAPHORE: sem_init(&it->semaphore, shared, 0); break;
    case MUTEX: case ROBUST: pthread_mutex_init(&it->mutex, &mutex); pthread_mutex_lock(&it->mutex); break;
    case CONDITION: pthread_mutex_init(&it->mutex, NULL); pthread_cond_init(&it->condition, &condition); break;
    case LOCK: pthread_rwlock_init(&it->lock, &lock); pthread_rwlock_rdlock(&it->lock); break;
    case BARRIER: pthread_barrier_init(&it->barrier, &barrier, 2); break;
  }
}

static void wake(void) {
  switch (kind) {
    case SEMAPHORE: sem_post(&it->semaphore); break;
    case MUTEX: case ROBUST: pthread_mutex_unlock(&it->mutex); break;
    case CONDITION:
      pthread_mutex_lock(&it->mutex);
      it->is_set = 1;
      pthread_cond_signal(&it->condition);
      pthread_mutex_unlock(&it->mutex);
      break;
    case LOCK: pthread_rwlock_unlock(&it->lock); break;
    case BARRIER: pthread_barrier_wait(&it->barrier); break;
    default:
      *(volatile int *)&it->word = 1;
      syscall(SYS_futex, &it->word, FUTEX_WAKE, 1, NULL, NULL, 0);
  }
}

/* A child that ends when it is told. */
static pid_t child(int *leash) {
  int ends[2];
  if (pipe(ends)) exit(97);
  pid_t pid = fork();
  if (pid == 0) {
    char end;
    close(ends[1]);
    _exit(read(ends[0], &end, 1) == 0 ? 0 : 1);
  }
  close(ends[0]);
  *leash = ends[1];
  return pid;
}

static void ended(pid_t pid, int leash) {
  int status;
  close(leash);
  waitpid(pid, &status, 0);
  if (status) printf("child %d\n", status);
}

static void *sleeps(void *word) {
  thread = syscall(SYS_gettid);
  while (!*(volatile int *)word) syscall(SYS_futex, word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0);
  return word;
}

static void *joins(void *of) {
  thread = syscall(SYS_gettid);
  pthread_join(*(pthread_t *)of, NULL);
  return NULL;
}

static void stacks(char *stack, const char *what) {
  static int word;
  pthread_attr_t attributes;
  pthread_t sleeper, joiner;
  word = 0;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stack, MIB);
  thread = 0;
  pthread_create(&sleeper, &attributes, sleeps, &word);
  while (!thread) sched_yield();
  thread = 0;
  pthread_create(&joiner, NULL, joins, &sleeper);
  while (!thread) sched_yield();
  wait_until_asleep(thread);
  int leash;
  pid_t pid = child(&leash);
  word = 1;
  syscall(SYS_futex, &word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
  pthread_join(joiner, NULL);
  ended(pid, leash);
  printf("joined a thread %s\n", what);
}

static int ends_at_once(void *unused) {
  (void)unused;
  return 0;
}

static void cloned(char *m) {
  volatile int *tid = (int *)m;
  *tid = 77;
  int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_CHILD_CLEARTID | SIGCHLD;
  pid_t pid = clone(ends_at_once, m + MIB, flags, NULL, NULL, NULL, tid);
  int status = -1;
  waitpid(pid, &status, 0);
  printf("cloned %d, its word %d\n", status, *tid);
}

int main(int count, char **words) {
  (void)words;
  int shared = count < 2;
  alarm(60);
  setvbuf(stdout, NULL, _IOLBF, 0);
  char *m = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  m = (char *)(((size_t)m + 2 * MIB - 1) & ~(2 * MIB - 1));
  memset(m, 0, 48 * MIB);
  for (kind = 0; kind < (shared ? KINDS : WORD); kind++) {
    it = (struct all *)(m + 2 * MIB * kind);
    pthread_t waiter;
    thread = 0;
    prepare(shared);
    pthread_create(&waiter, NULL, waits, NULL);
    while (!thread) sched_yield();
    if (kind == VECTOR && syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0) < 0 && errno == ENOSYS) thread = -1;
    wait_until_asleep(thread);
    int leash;
    pid_t pid = child(&leash);
    wake();
    pthread_join(waiter, NULL);
    ended(pid, leash);
    printf("woken: %s\n", names[kind]);
  }
  if (shared) {
    stacks(m + 2 * MIB * KINDS, "on a stack of ours");
    cloned(m + 2 * MIB * (KINDS + 1));
  }
  return 0;
}
