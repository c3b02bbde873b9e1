/* Ends by the end of its last thread, in the way that its argument names. Natively and under Cowslip it has to print the
 * same, and to end. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

static int gate[2];

/* Enough for an arena. */
static char *memory(void) {
  char *m = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) exit(97);
  memset(m, 1, 64 * MIB);
  return m;
}

static int forked(char *m) {
  int status = -1;
  pid_t pid = fork();
  if (pid == 0) _exit(m[MIB] == 1 ? 0 : 1);
  m[3 * MIB] = 2;
  waitpid(pid, &status, 0);
  return status;
}

static char *m;

/* What a program does at its end, in the thread that ends it. */
static void at_exit(void) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  char *copy = malloc(3 * MIB);
  memcpy(copy, m, 3 * MIB);
  printf("at exit: copied %d, forked %d, SIGTERM is %s, SIGUSR1 is %s\n", copy[2 * MIB], forked(m),
         sigismember(&mask, SIGTERM) ? "blocked" : "let through", sigismember(&mask, SIGUSR1) ? "blocked" : "let through");
  free(copy);
}

static void *outlives_main(void *ends_alone) {
  char word;
  if (read(gate[0], &word, 1) != 0) exit(98);
  /* The main thread has ended, or is about to. */
  for (int forks = 0; forks < 3; forks++)
    if (forked(m)) exit(99);
  if (ends_alone) syscall(SYS_exit, 0);
  return NULL;
}

#define BLOCKS 2000
#define THREADS 8
static volatile int is_done;

/* Small blocks come and go, in runs that a thread's cache does not hold. */
static void allocate(void) {
  static _Thread_local char *blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) blocks[i] = memset(malloc(200 + i % 3000), 1, 200);
  for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
}

static void *allocates(void *nothing) {
  while (!is_done) allocate();
  return nothing;
}

/* Children that libc does not know of, made while other threads are inside malloc, end without libc. */
static void clone_often(void) {
  pthread_t threads[THREADS];
  int wrong = 0;
  free(memset(malloc(16 * MIB), 1, 16 * MIB));
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, allocates, NULL);
  for (int round = 0; round < 100; round++) {
    int status = -1;
    allocate();
    pid_t pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
      alarm(30);
      syscall(SYS_exit, 0);
    }
    waitpid(pid, &status, 0);
    wrong += status != 0;
  }
  is_done = 1;
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  printf("wrong: %d\n", wrong);
  _exit(0);
}

int main(int count, char **words) {
  char *way = count > 1 ? words[1] : words[0];
  sigset_t some;
  pthread_t thread;
  setvbuf(stdout, NULL, _IONBF, 0);
  sigemptyset(&some);
  sigaddset(&some, SIGUSR1);
  pthread_sigmask(SIG_SETMASK, &some, NULL);
  if (pipe(gate)) return 96;
  m = memory();
  for (int forks = 0; forks < 2; forks++)
    if (forked(m)) return 95;
  atexit(at_exit);
  if (!strcmp(way, "exit")) pthread_exit(NULL);
  if (!strcmp(way, "without descriptors")) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
    syscall(SYS_exit, 0);
  }
  if (!strcmp(way, "system call")) syscall(SYS_exit, 0);
  if (!strcmp(way, "cloned")) clone_often();
  if (!strcmp(way, "cancelled")) {
    pthread_cancel(pthread_self());
    pause();
  }
  if (!strcmp(way, "worker") || !strcmp(way, "worker by a system call")) {
    pthread_create(&thread, NULL, outlives_main, way[6] ? way : NULL);
    close(gate[1]);
    pthread_exit(NULL);
  }
  if (!strcmp(way, "child")) {
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
      m = memory();
      if (forked(m)) _exit(94);
      pthread_exit(NULL);
    }
    waitpid(pid, &status, 0);
    printf("a child's end: %d\n", status);
    _exit(0);
  }
  if (!strcmp(way, "heir")) {
    /* Whoever reads what is printed waits for it. */
    pid_t pid = fork();
    if (pid) _exit(0);
    char *own = memory();
    close(gate[1]);
    pthread_create(&thread, NULL, outlives_main, NULL);
    if (forked(own)) _exit(93);
    pthread_exit(NULL);
  }
  return 92;
}
