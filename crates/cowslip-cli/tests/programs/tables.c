/* Threads, and processes that share this one's memory, with tables of descriptors of their own; all of them fork. Argument:
 * who has one: "thread", "closed" (which it closes by the same call), "number" (by number), "peer" (clone with CLONE_VM), "vfork", or "alone",
 * a thread that has no other beside it. Natively and under Cowslip it has to print the same. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif

enum { ROUNDS = 4, FILES = 900 };
static const char *who;
static pthread_barrier_t both;

static char *fresh(size_t len, char value) {
  char *m = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) _exit(90);
  memset(m, value, len);
  return m;
}

static size_t others(const char *m, size_t len, char value) {
  size_t count = 0;
  for (size_t i = 0; i < len; i += PAGE) count += m[i] != value;
  return count;
}

/* Forks, and changes memory while the child looks at it. Without libc's handlers, as its threads' storage may be shared. */
static int forks(char *m, size_t len, char value) {
  int bad = 0;
  for (int round = 0; round < ROUNDS; round++, value++) {
    memset(m, value, len);
    int status = -1;
    pid_t pid = _Fork();
    if (pid == 0) _exit(others(m, len, value) > 0);
    memset(m, value + 1, len);
    bad += pid < 0 || waitpid(pid, &status, 0) != pid || status != 0 || others(m, len, value + 1) > 0;
    usleep(15000);
  }
  return bad;
}

static char *theirs;

static void *thread(void *unused) {
  int made = !strcmp(who, "closed")   ? close_range(3, ~0u, CLOSE_RANGE_UNSHARE)
             : !strcmp(who, "number") ? (int)syscall(SYS_unshare, CLONE_FILES)
                                      : unshare(CLONE_FILES);
  /* Mapped with what this table has, and none beside it. */
  theirs = fresh(32 * MIB, 7);
  pthread_barrier_wait(&both);
  return (void *)(long)(made + forks(theirs, 32 * MIB, 10));
}

static int peer(void *memory) {
  _exit(forks(memory, 16 * MIB, 30));
}

int main(int count, char **arguments) {
  int bad = 0, files[FILES], status = -1;
  if (count < 2) return 91;
  who = arguments[1];
  setvbuf(stdout, NULL, _IONBF, 0);
  pthread_barrier_init(&both, NULL, 2);
  if (!strcmp(who, "vfork")) {
    pid_t pid = vfork();
    if (pid == 0) {
      theirs = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      memset(theirs, 7, 64 * MIB);
      _exit(0);
    }
    waitpid(pid, &status, 0);
    bad += status != 0 || others(theirs, 64 * MIB, 7) > 0;
  }
  char *m = fresh(64 * MIB, 1);
  bad += forks(m, 4 * MIB, 1);
  pthread_t other;
  int has_thread = !strcmp(who, "thread") || !strcmp(who, "closed") || !strcmp(who, "number");
  if (has_thread) {
    if (pthread_create(&other, NULL, thread, NULL)) return 92;
    pthread_barrier_wait(&both);
  }
  if (!strcmp(who, "alone")) bad += unshare(CLONE_FILES) != 0;
  /* The program's files may have the numbers that something else has in the other table. */
  for (int i = 0; i < FILES; i++) {
    char name[64];
    snprintf(name, sizeof name, "tables.%d.%d", (int)getpid(), i);
    files[i] = syscall(SYS_memfd_create, name, 0);
    bad += files[i] < 0 || write(files[i], "hello", 5) != 5;
  }
  if (!strcmp(who, "peer")) {
    char *stack = fresh(MIB, 0);
    pid_t pid = clone(peer, stack + MIB, CLONE_VM | SIGCHLD, m + 40 * MIB);
    bad += forks(m, 16 * MIB, 50);
    bad += pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
  }
  bad += forks(m, 16 * MIB, 70);
  void *their_bad = NULL;
  if (has_thread && pthread_join(other, &their_bad)) return 93;
  if (has_thread) bad += forks(theirs, 32 * MIB, 90);
  for (int i = 0; i < FILES; i++) {
    struct stat it;
    bad += fstat(files[i], &it) || it.st_size != 5;
  }
  bad += others(m + 16 * MIB, 24 * MIB, 1) > 0 || others(m + 56 * MIB, 8 * MIB, 1) > 0;
  printf("%s: %d wrong, %ld in the thread\n", who, bad, (long)their_bad);
  return 0;
}
