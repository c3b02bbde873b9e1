/* Does with its memory and its descriptors what programs do, by system call numbers, before a fork, after it and in its
 * child. Natively and under Cowslip it has to print the same. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#define RW (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static const char *name(long answer) { return answer == -1 ? strerrorname_np(errno) : "ok"; }

static size_t other_than(const char *m, size_t len, char byte) {
  size_t bad = 0;
  for (size_t i = 0; i < len; i++) bad += m[i] != byte;
  return bad;
}

static int ended(pid_t pid) {
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}

static void all(const char *where) {
  char *m = mmap(NULL, 16 * MIB, RW, PRIVATE, -1, 0);
  memset(m, 1, 16 * MIB);
  printf("%s: protect %s\n", where, name(syscall(SYS_mprotect, m, PAGE, PROT_READ)));
  printf("back %s\n", name(syscall(SYS_mprotect, m, PAGE, RW)));
  printf("discard %s, wrong %zu %zu\n", name(syscall(SYS_madvise, m + 2 * MIB, 2 * MIB, MADV_DONTNEED)),
         other_than(m + 2 * MIB, 2 * MIB, 0), other_than(m, 2 * MIB, 1));
  printf("unmap %s\n", name(syscall(SYS_munmap, m + 4 * MIB, 2 * MIB)));
  char *at = mmap(m + 4 * MIB, 2 * MIB, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0);
  printf("map again %d, wrong %zu\n", at == m + 4 * MIB, other_than(at, 2 * MIB, 0));
  at = (char *)syscall(SYS_mmap, m + 5 * MIB, MIB, RW, PRIVATE | MAP_FIXED, -1, 0);
  printf("map over %d, wrong %zu\n", at == m + 5 * MIB, other_than(at, MIB, 0));
  pid_t pid = fork();
  if (pid == 0) _exit(other_than(m, 2 * MIB, 1) || other_than(m + 2 * MIB, 4 * MIB, 0));
  printf("child %d\n", ended(pid));
  at = (char *)syscall(SYS_mremap, m + 8 * MIB, 4 * MIB, 12 * MIB, MREMAP_MAYMOVE, NULL);
  printf("move %d, wrong %zu %zu\n", at != MAP_FAILED, other_than(at, 4 * MIB, 1), other_than(at + 4 * MIB, 8 * MIB, 0));
  syscall(SYS_munmap, at, 12 * MIB);
  printf("lock %s, unlock %s\n", name(syscall(SYS_mlock, m, PAGE)), name(syscall(SYS_munlock, m, PAGE)));
  printf("lock %s\n", name(syscall(SYS_mlock2, m + PAGE, PAGE, 1)));
  printf("remap %s %s\n", name(syscall(SYS_remap_file_pages, m, PAGE, 0, 8, 0)), name(remap_file_pages(m, PAGE, 0, 8, 0)));
  long sealed = syscall(SYS_mseal, m + 6 * MIB, MIB, 0);
  printf("seal %s\n", name(sealed));
  pid = fork();
  if (pid == 0) _exit(other_than(m + 6 * MIB, 2 * MIB, 1) != 0);
  printf("child %d\n", ended(pid));
  printf("sealed: unmap %s\n", sealed ? "EPERM" : name(syscall(SYS_munmap, m + 6 * MIB, MIB)));
  m[6 * MIB] = 2;
  pid = fork();
  if (pid == 0) _exit(m[6 * MIB] != 2);
  printf("child %d\n", ended(pid));
}

static void starts(void) {
  unsigned long arguments[8] = {0, 0, 0, 0, SIGCHLD, 0, 0, 0};
  printf("clone3 of nothing %s\n", name(syscall(SYS_clone3, NULL, 0)));
  printf("clone3 of little %s\n", name(syscall(SYS_clone3, arguments, 8)));
  printf("clone3 of what is not there %s\n", name(syscall(SYS_clone3, (void *)1, sizeof arguments)));
  long pid = syscall(SYS_clone3, arguments, sizeof arguments);
  if (pid == 0) _exit(3);
  printf("clone3 %d\n", ended(pid));
  pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
  if (pid == 0) _exit(4);
  printf("clone %d\n", ended(pid));
  pid = syscall(SYS_fork);
  if (pid == 0) _exit(5);
  printf("fork %d\n", ended(pid));
}

static void descriptors(void) {
  int fd = syscall(SYS_open, "/dev/null", O_RDONLY);
  printf("dup2 %ld, dup3 %ld\n", syscall(SYS_dup2, fd, 40), syscall(SYS_dup3, fd, 41, O_CLOEXEC));
  printf("close %s %s\n", name(syscall(SYS_close, 40)), name(syscall(SYS_close, 40)));
  printf("close all %s\n", name(syscall(SYS_close_range, 3, ~0u, 0)));
  pid_t pid = fork();
  if (pid == 0) _exit(fcntl(41, F_GETFD) == -1 ? 0 : 1);
  printf("child %d\n", ended(pid));
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  all("live");
  all("later");
  starts();
  descriptors();
  all("last");
  pid_t pid = fork();
  if (pid == 0) {
    all("child");
    _exit(0);
  }
  printf("child %d\n", ended(pid));
  return 0;
}
