/* Gives advice about large memory by a descriptor of the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

static long advise(int fd, const struct iovec *ranges, size_t count, int advice, unsigned flags) {
  long done = syscall(SYS_process_madvise, fd, ranges, count, advice, flags);
  return done < 0 ? -errno : done;
}

static void drop(const char *when, int fd, char *m) {
  memset(m, 5, 32 * MIB);
  struct iovec ranges[] = {{m + MIB, MIB}, {m + 4 * MIB, 4 * MIB}, {m + 20 * MIB, 4096}};
  long done = advise(fd, ranges, 3, MADV_DONTNEED, 0);
  size_t bad = 0;
  for (size_t i = 0; i < 32 * MIB; i += 4096) {
    int is_dropped = (i >= MIB && i < 2 * MIB) || (i >= 4 * MIB && i < 8 * MIB) || i == 20 * MIB;
    bad += m[i] != (is_dropped ? 0 : 5);
  }
  /* By its name, where libc has it: the same, for a part. */
  m[MIB] = 6;
#if __GLIBC_PREREQ(2, 36)
  long named = process_madvise(fd, ranges, 1, MADV_DONTNEED, 0);
#else
  long named = advise(fd, ranges, 1, MADV_DONTNEED, 0);
#endif
  printf("%s: %ld and %ld bytes, %zu wrong, then %d\n", when, done, named, bad, m[MIB]);
  fflush(stdout);
}

int main(void) {
  char *m = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) return 90;
  memset(m, 1, 64 * MIB);
  int fd = syscall(SYS_pidfd_open, getpid(), 0);
  drop("before", fd, m);
  int ends[2];
  if (pipe(ends)) return 91;
  memset(m, 4, MIB);
  pid_t pid = fork();
  if (pid == 0) {
    char byte;
    close(ends[1]);
    if (read(ends[0], &byte, 1) != 0) _exit(1);
    size_t bad = 0;
    for (size_t i = 32 * MIB; i < 64 * MIB; i += 4096) bad += m[i] != 1;
    /* A descriptor of the parent is one of another process. */
    struct iovec one = {m, MIB};
    printf("child: %ld, %d, %zu wrong\n", advise(fd, &one, 1, MADV_DONTNEED, 0), m[0], bad);
    fflush(stdout);
    int own = syscall(SYS_pidfd_open, getpid(), 0);
    drop("child", own, m);
    _exit(0);
  }
  drop("frozen", fd, m);
  memset(m, 7, MIB);
  close(ends[1]);
  int status;
  if (waitpid(pid, &status, 0) != pid || status) return 92;
  usleep(60000);
  drop("after", fd, m);
  struct iovec ranges[] = {{m, MIB}, {m + MIB + 1, 4096}, {m + 3 * MIB, 4096}};
  long some = advise(fd, ranges, 3, MADV_DONTNEED, 0);
  long flags = advise(fd, ranges, 3, MADV_DONTNEED, 1);
  long none = advise(fd, ranges, 0, MADV_DONTNEED, 0);
  long nowhere = advise(fd, (struct iovec *)8, 1, MADV_DONTNEED, 0);
  printf("partly %ld %d %d, flags %ld, none %ld, nowhere %ld\n", some, m[0], m[3 * MIB], flags, none, nowhere);
  return 0;
}
