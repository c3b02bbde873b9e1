/* Limits itself, and prints what it gets from then on. Natively and under Cowslip it has to print the same. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define GIB (1ul << 30)
#define RW (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)

static const char *name(int failed) { return failed ? strerrorname_np(errno) : "ok"; }

static size_t other_than(const char *m, size_t len, char byte) {
  size_t bad = 0;
  for (size_t i = 0; i < len; i++) bad += m[i] != byte;
  return bad;
}

static const char *forks(const char *m, size_t len, char byte) {
  int status = -1;
  pid_t pid = fork();
  if (pid == 0) _exit(other_than(m, len, byte) != 0);
  if (pid < 0) return strerrorname_np(errno);
  waitpid(pid, &status, 0);
  return status ? "wrong" : "ok";
}

static const char *maps(size_t len) {
  char *m = mmap(NULL, len, RW, PRIVATE, -1, 0);
  if (m != MAP_FAILED) munmap(m, len);
  return name(m == MAP_FAILED);
}

int main(int count, char **words) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  char *m = mmap(NULL, 80 * MIB, RW, PRIVATE, -1, 0);
  printf("mapped %s\n", name(m == MAP_FAILED));
  memset(m, 1, 80 * MIB);
  printf("forks %s\n", forks(m, 80 * MIB, 1));
  int kind = strcmp(words[1], "as") == 0 ? RLIMIT_AS : strcmp(words[1], "data") == 0 ? RLIMIT_DATA : RLIMIT_FSIZE;
  struct rlimit limit = {kind == RLIMIT_FSIZE ? 64 * MIB : 4 * GIB, kind == RLIMIT_FSIZE ? 64 * MIB : 4 * GIB}, old;
  if (count == 2) printf("limited %s\n", name(setrlimit(kind, &limit)));
  else if (strcmp(words[2], "number") == 0) printf("limited %s\n", name(syscall(SYS_prlimit64, 0, kind, &limit, &old) != 0));
  else printf("limited %s\n", name(prlimit(getpid(), kind, &limit, &old)));
  printf("content %zu\n", other_than(m, 80 * MIB, 1));
  memset(m, 2, 80 * MIB);
  printf("maps %s %s\n", maps(200 * MIB), kind == RLIMIT_FSIZE ? "-" : maps(5 * GIB));
  int file = open("/proc/self/exe", O_RDONLY);
  char *mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
  printf("maps a file %s\n", name(mapped == MAP_FAILED));
  printf("forks %s\n", forks(m, 80 * MIB, 2));
  memset(m, 3, 80 * MIB);
  printf("forks %s\n", forks(m, 80 * MIB, 3));
  printf("gives back %s\n", name(munmap(m + 8 * MIB, 8 * MIB)));
  printf("content %zu\n", other_than(m, 8 * MIB, 3) + other_than(m + 16 * MIB, 64 * MIB, 3));
  return 0;
}
