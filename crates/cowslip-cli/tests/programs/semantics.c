/* Does everything to large anonymous memory that a program may do, before a fork, after it and in children,
 * and prints what came of it. Natively and under Cowslip it has to print the same. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#define LEN (8 * MIB)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)
#define RW (PROT_READ | PROT_WRITE)
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

static const char *where;

static void say(const char *format, ...) {
  char line[512];
  int n = snprintf(line, sizeof line, "%s: ", where);
  va_list args;
  va_start(args, format);
  n += vsnprintf(line + n, sizeof line - n - 1, format, args);
  va_end(args);
  line[n++] = '\n';
  if (write(1, line, n) != n) _exit(99);
}

static const char *name(int failed) { return failed ? strerrorname_np(errno) : "ok"; }

static sigjmp_buf after_fault;
static volatile int expects_fault;

static void on_fault(int signal) {
  if (!expects_fault) _exit(128 + signal);
  siglongjmp(after_fault, signal);
}

/* The signal that an access ends with, or 0. */
static int touch(volatile char *at, int write) {
  int signal = sigsetjmp(after_fault, 1);
  if (signal == 0) {
    expects_fault = 1;
    char it = *at;
    if (write) *at = it;
  }
  expects_fault = 0;
  return signal;
}

static char *fresh(void) {
  char *m = mmap(NULL, LEN, RW, PRIVATE, -1, 0);
  if (m == MAP_FAILED) _exit(98);
  return m;
}

static void fill(char *m, size_t len, char seed) {
  for (size_t i = 0; i < len; i += PAGE) memset(m + i, seed + (char)(i / PAGE % 31), PAGE);
}

/* Pages that are not as `fill` left them. */
static size_t wrong(const char *m, size_t from, size_t to, char seed) {
  size_t bad = 0;
  for (size_t i = from; i < to; i += PAGE) {
    char want = seed + (char)(i / PAGE % 31);
    bad += m[i] != want || memcmp(m + i, m + i + 1, PAGE - 1) != 0;
  }
  return bad;
}

static size_t not_zero(const char *m, size_t from, size_t to) {
  size_t bad = 0;
  for (size_t i = from; i < to; i++) bad += m[i] != 0;
  return bad;
}

static long kib(const char *field) {
  char text[8192];
  int fd = open("/proc/self/status", O_RDONLY);
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  text[n < 0 ? 0 : n] = 0;
  char *at = strstr(text, field);
  return at ? atol(at + strlen(field)) : -1;
}

static int ended(pid_t pid) {
  int status = -1;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  return status;
}

static void discards(char *m) {
  say("dontneed %s", name(madvise(m + 2 * MIB, 2 * MIB, MADV_DONTNEED)));
  say("dontneed part %s", name(madvise(m + 5 * PAGE, 3 * PAGE, MADV_DONTNEED)));
  mprotect(m + 20 * PAGE, 2 * PAGE, PROT_READ);
  say("dontneed read-only %s", name(madvise(m + 20 * PAGE, PAGE, MADV_DONTNEED)));
  mprotect(m + 30 * PAGE, 2 * PAGE, PROT_NONE);
  say("dontneed guarded %s", name(madvise(m + 30 * PAGE, 2 * PAGE, MADV_DONTNEED)));
  mprotect(m + 20 * PAGE, 12 * PAGE, RW);
  say("zeroes %zu %zu %zu %zu", not_zero(m, 2 * MIB, 4 * MIB), not_zero(m, 5 * PAGE, 8 * PAGE),
      not_zero(m, 20 * PAGE, 21 * PAGE), not_zero(m, 30 * PAGE, 32 * PAGE));
  say("the rest %zu %zu %zu", wrong(m, 0, 5 * PAGE, 1), wrong(m, 8 * PAGE, 20 * PAGE, 1),
      wrong(m, 32 * PAGE, 2 * MIB, 1) + wrong(m, 4 * MIB, LEN, 1) + wrong(m, 21 * PAGE, 30 * PAGE, 1));
  memset(m + 2 * MIB, 7, PAGE);
  say("written again %d %d", m[2 * MIB], m[2 * MIB + PAGE]);
  say("unaligned %s", name(madvise(m + 1, PAGE, MADV_DONTNEED)));
}

static void protections(char *m) {
  say("protect %s %s", name(mprotect(m + PAGE, PAGE, PROT_NONE)), name(mprotect(m + 3 * PAGE, PAGE, PROT_READ)));
  say("guard %d %d", touch(m + PAGE, 0), touch(m + PAGE, 1));
  say("read-only %d %d", touch(m + 3 * PAGE, 0), touch(m + 3 * PAGE, 1));
  say("others %d %d", touch(m, 1), touch(m + 2 * PAGE, 1));
  pid_t pid = fork();
  if (pid == 0) {
    say("in its child %d %d %d", touch(m + PAGE, 0), touch(m + 3 * PAGE, 0), touch(m + 3 * PAGE, 1));
    _exit(0);
  }
  say("child %d", ended(pid));
  say("after a fork %d %d %d", touch(m + PAGE, 0), touch(m + 3 * PAGE, 1), touch(m + 4 * PAGE, 1));
  say("back %s", name(mprotect(m, 8 * PAGE, RW)));
  say("content %zu", wrong(m, 0, LEN, 1));
  munmap(m + 10 * PAGE, PAGE);
  say("across a hole %s", name(mprotect(m + 9 * PAGE, 3 * PAGE, PROT_READ)));
  say("before and behind it %d %d", touch(m + 9 * PAGE, 1), touch(m + 11 * PAGE, 1));
  say("code %s", name(mprotect(m + 12 * PAGE, PAGE, PROT_READ | PROT_EXEC)));
  say("written to %d, content %zu", touch(m + 12 * PAGE, 1), wrong(m, 11 * PAGE, LEN, 1));
  mprotect(m + 9 * PAGE, PAGE, RW);
  say("outside %s", name(mprotect((char *)((size_t)m & ~(LEN - 1)) + (1ul << 46), PAGE, RW)));
}

static void placements(char *m) {
  char *at = mmap(m + MIB, MIB, RW, PRIVATE | MAP_FIXED, -1, 0);
  say("fixed %d %zu %zu", at == m + MIB, not_zero(m, MIB, 2 * MIB),
      wrong(m, 0, MIB, 1) + wrong(m, 2 * MIB, LEN, 1));
  fill(m + MIB, MIB, 9);
  at = mmap(m + MIB + 8 * PAGE, 8 * PAGE, PROT_NONE, PRIVATE | MAP_FIXED | MAP_NORESERVE, -1, 0);
  say("decommitted %d %d", at == m + MIB + 8 * PAGE, touch(at, 0));
  at = mmap(m + MIB + 8 * PAGE, 4 * PAGE, RW, PRIVATE | MAP_FIXED, -1, 0);
  say("committed %d %zu %d %zu", at == m + MIB + 8 * PAGE, not_zero(at, 0, 4 * PAGE), touch(at + 4 * PAGE, 0),
      wrong(m + MIB, 0, 8 * PAGE, 9) + wrong(m + MIB, 16 * PAGE, MIB, 9));
  at = mmap(m + 3 * MIB, MIB, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0);
  say("noreplace %s", name(at == MAP_FAILED));
  say("unmapped %s", name(munmap(m + 3 * MIB, MIB)));
  say("touched %d", touch(m + 3 * MIB, 0));
  at = mmap(m + 3 * MIB, MIB, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0);
  say("noreplace again %d %zu", at == m + 3 * MIB, at == MAP_FAILED ? 0 : not_zero(at, 0, MIB));
  munmap(m + 3 * MIB, MIB);
  at = mmap(m + 3 * MIB, MIB, RW, PRIVATE, -1, 0);
  say("hint %d", at != MAP_FAILED);
  munmap(at, MIB);
  FILE *file = tmpfile();
  for (int i = 0; i < 4; i++) fprintf(file, "%-4095d\n", i);
  fflush(file);
  at = mmap(m + 5 * MIB, 4 * PAGE, RW, MAP_PRIVATE | MAP_FIXED, fileno(file), 0);
  say("file %d %.1s %.1s", at == m + 5 * MIB, at, at + 3 * PAGE);
  pid_t pid = fork();
  if (pid == 0) {
    at[0] = 'c';
    say("file in its child %.1s %.1s", at, at + 2 * PAGE);
    _exit(0);
  }
  say("child %d, file %.1s, around it %zu", ended(pid), at,
      wrong(m, 4 * MIB, 5 * MIB, 1) + wrong(m, 5 * MIB + 4 * PAGE, LEN, 1));
  fclose(file);
  say("bad %s", name(mmap(m + 1, PAGE, RW, PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED));
  say("empty %s", name(mmap(m, 0, RW, PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED));
  say("no file %s", name(mmap(m, PAGE, RW, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED));
}

/* Linux 6.17 moves several mappings, and leaves what lies where their holes would. */
static int moves_several(void) {
  char *m = mmap(NULL, 4 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  mprotect(m, PAGE, PROT_READ);
  int can = mremap(m, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, m + 2 * PAGE) != MAP_FAILED;
  munmap(m, 4 * PAGE);
  return can;
}

static void moves(char *m) {
  mprotect(m + 7 * MIB, PAGE, PROT_NONE);
  munmap(m + 7 * MIB + 4 * PAGE, PAGE);
  say("as it is %s", name(mremap(m, LEN, LEN, 0) == MAP_FAILED));
  char *at = mremap(m, LEN, 6 * MIB, 0);
  say("shrunk %d %zu %d", at == m, wrong(m, 0, 6 * MIB, 1), touch(m + 6 * MIB, 0));
  char *other = fresh();
  at = mremap(m, 6 * MIB, 32 * MIB, MREMAP_MAYMOVE);
  say("grown %zu %zu", wrong(at, 0, 6 * MIB, 1), not_zero(at, 6 * MIB, 32 * MIB));
  m = at;
  at = mremap(m, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, other + 2 * MIB);
  say("fixed %d %zu %zu %d", at == other + 2 * MIB, wrong(at, 0, 2 * MIB, 1), not_zero(other, 0, 2 * MIB), touch(m, 0));
  m += 2 * MIB;
  mprotect(m, PAGE, PROT_READ);
  at = mremap(m, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other);
  say("read-only %d %zu %d", at == other, wrong(other, 0, PAGE, 1 + 512 % 31), touch(other, 1));
  m += PAGE;
  mprotect(m + MIB, PAGE, PROT_READ);
  munmap(m + MIB + 2 * PAGE, PAGE);
  other[6 * MIB + 3 * PAGE] = 7;
  if (moves_several()) {
    at = mremap(m + MIB - PAGE, 5 * PAGE, 5 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other + 6 * MIB);
    say("several %d %zu", at == other + 6 * MIB, wrong(at, 0, 3 * PAGE, 1 + 768 % 31));
    say("their protection %d %d, the hole %d", touch(at, 1), touch(at + PAGE, 1), at[3 * PAGE]);
  }
  at = mremap(m, 1 * MIB - PAGE, 1 * MIB - PAGE, MREMAP_MAYMOVE | 4 /* DONTUNMAP */);
  say("dontunmap %d %zu %zu", at != MAP_FAILED, at == MAP_FAILED ? 0 : wrong(at, 0, MIB - PAGE, 1 + 513 % 31) > 300,
      not_zero(m, 0, MIB - PAGE));
  say("nothing %s", name(mremap(m, 0, MIB, MREMAP_MAYMOVE) == MAP_FAILED));
  say("no such flag %s", name(mremap(m, MIB, MIB, 64) == MAP_FAILED));
  say("onto itself %s", name(mremap(m, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, m + PAGE) == MAP_FAILED));
  /* What is not in an arena, moved to where an arena may be. */
  char *shared = mmap(NULL, MIB, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  fill(shared, MIB, 5);
  at = mremap(shared, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, other + 4 * MIB);
  pid_t pid = fork();
  if (pid == 0) {
    fill(at, MIB, 6);
    _exit(0);
  }
  say("shared %d, child %d", at == other + 4 * MIB, ended(pid));
  say("by its child %zu", wrong(at, 0, MIB, 6));
  munmap(other, LEN);
}

/* What left the arena is the kernel's to move; to the program it is one mapping all the same. */
static void moves_of_what_left(char *m) {
  size_t lengths[] = {6 * MIB + 3 * PAGE, 6 * MIB + 9 * PAGE, LEN, 330 * PAGE, 333 * PAGE, 20 * MIB};
  size_t len = LEN;
  sem_init((sem_t *)m, 1, 0);
  sem_init((sem_t *)(m + 3 * MIB), 1, 0);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    char *at = mremap(m, len, lengths[i], MREMAP_MAYMOVE);
    say("to %zu pages: %s", lengths[i] / PAGE, at == MAP_FAILED ? "failed" : "done");
    if (at == MAP_FAILED) return;
    m = at;
    len = lengths[i];
    m[len - 1] = 5;
    say("content %d %zu", m[len - 1], wrong(m, MIB, MIB + 64 * PAGE, 1));
  }
  say("unmapped %d", munmap(m, len));
}

static void advice(char *m) {
  int harmless[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
                    MADV_DONTDUMP, MADV_DODUMP, MADV_DOFORK, MADV_KEEPONFORK, MADV_COLD, MADV_PAGEOUT,
                    MADV_POPULATE_READ, MADV_POPULATE_WRITE};
  for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
    say("advice %d %s", harmless[i], name(madvise(m, 2 * MIB, harmless[i])));
  say("content %zu", wrong(m, 0, LEN, 1));
  say("remove %s", name(madvise(m, PAGE, MADV_REMOVE)));
  say("no such advice %s", name(madvise(m, PAGE, 9999)));
  munmap(m + 7 * MIB, PAGE);
  say("hole %s", name(madvise(m + 7 * MIB - PAGE, 3 * PAGE, MADV_DONTNEED)));
  mprotect(m + 7 * MIB + PAGE, PAGE, PROT_NONE);
  say("into the hole %s", name(madvise(m + 7 * MIB - PAGE, 3 * PAGE, MADV_POPULATE_READ)));
  mprotect(m + 7 * MIB + PAGE, PAGE, RW);
  say("around the hole %zu", not_zero(m, 7 * MIB - PAGE, 7 * MIB) + not_zero(m, 7 * MIB + PAGE, 7 * MIB + 2 * PAGE));
  m[MIB] = 77;
  say("dontfork %s", name(madvise(m + MIB, MIB, MADV_DONTFORK)));
  say("wipeonfork %s", name(madvise(m + 3 * MIB, 8 * PAGE, MADV_WIPEONFORK)));
  say("dropped and written again %s", name(madvise(m + 3 * MIB + 2 * PAGE, 2 * PAGE, MADV_DONTNEED)));
  fill(m + 3 * MIB + 2 * PAGE, 2 * PAGE, 1 + (3 * MIB + 2 * PAGE) / PAGE % 31);
  pid_t pid = fork();
  if (pid == 0) {
    say("kept from it %d, wiped %zu, the rest %zu", touch(m + MIB, 0), not_zero(m, 3 * MIB, 3 * MIB + 8 * PAGE),
        wrong(m, 2 * MIB, 3 * MIB, 1) + wrong(m, 3 * MIB + 8 * PAGE, 7 * MIB - PAGE, 1));
    _exit(0);
  }
  say("child %d, mine %d %zu", ended(pid), m[MIB], wrong(m, 3 * MIB, 3 * MIB + 8 * PAGE, 1));
  say("again %s %s", name(madvise(m + MIB, MIB, MADV_DOFORK)), name(madvise(m + 3 * MIB, 8 * PAGE, MADV_KEEPONFORK)));
  pid = fork();
  if (pid == 0) _exit(m[MIB] == 77 && wrong(m, 3 * MIB, 3 * MIB + 8 * PAGE, 1) == 0 ? 0 : 1);
  say("given back %d", ended(pid));
}

static void *wait_for_end(void *pipe) {
  char byte;
  return read(*(int *)pipe, &byte, 1) ? pipe : NULL;
}

/* Beside a second thread, which what leaves has to heed. */
static void residence(char *m) {
  long before = kib("VmLck:");
  pthread_t other;
  int ends[2];
  if (pipe(ends) || pthread_create(&other, NULL, wait_for_end, ends)) _exit(97);
  say("mlock %s", name(mlock(m + 100, MIB - 200)));
  say("locked %ld", kib("VmLck:") - before);
  say("content %zu", wrong(m, 0, LEN, 1));
  pid_t pid = fork();
  if (pid == 0) _exit(wrong(m, 0, MIB, 1) == 0 ? 0 : 1);
  say("child %d", ended(pid));
  say("still %ld", kib("VmLck:") - before);
  say("munlock %s", name(munlock(m, MIB)));
  say("unlocked %ld", kib("VmLck:") - before);
  say("munlock of others %s", name(munlock(m + 4 * MIB, MIB)));
  say("dropped %s %zu", name(madvise(m, 2 * MIB, MADV_DONTNEED)), not_zero(m, 0, 2 * MIB));
  say("msync %s %s", name(msync(m, LEN, MS_SYNC)), name(msync(m, LEN, MS_ASYNC)));
  unsigned char there[16];
  say("mincore %s", name(mincore(m, 16 * PAGE, there)));
  close(ends[1]);
  pthread_join(other, NULL);
  close(ends[0]);
}

static void calls_into(char *m) {
  int ends[2];
  if (pipe(ends)) _exit(97);
  say("write from %zd", write(ends[1], m, 10000));
  say("read into %zd", read(ends[0], m + 4 * MIB, 10000));
  say("content %zu", wrong(m + 4 * MIB, 0, 2 * PAGE, 1));
  fill(m, LEN, 1);
  char copy[PAGE];
  struct iovec local = {copy, PAGE}, remote = {m + 33 * PAGE, PAGE};
  pid_t pid = fork();
  if (pid == 0) {
    memset(m + 33 * PAGE, 0, PAGE);
    ssize_t read = process_vm_readv(getppid(), &local, 1, &remote, 1, 0);
    say("process_vm_readv %zd %d", read, copy[7] == 1 + 33 % 31);
    _exit(0);
  }
  say("child %d", ended(pid));
  pid = fork();
  if (pid == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    m[44 * PAGE] = 3;
    raise(SIGSTOP);
    _exit(m[45 * PAGE] == 8 ? 0 : 1);
  }
  int status;
  waitpid(pid, &status, 0);
  long seen = ptrace(PTRACE_PEEKDATA, pid, m + 44 * PAGE, 0);
  long other = ptrace(PTRACE_PEEKDATA, pid, m + 43 * PAGE, 0);
  ptrace(PTRACE_POKEDATA, pid, m + 45 * PAGE, 8);
  ptrace(PTRACE_CONT, pid, 0, 0);
  say("ptrace %d %d", (int)(seen & 255), (int)(other & 255) == 1 + 43 % 31);
  say("traced child %d, mine %d", ended(pid), m[45 * PAGE] == 1 + 45 % 31);
  close(ends[0]);
  close(ends[1]);
}

static int in_clone(void *m) {
  ((char *)m)[0] = 66;
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, NULL, &blocked);
  if (sigismember(&blocked, SIGTERM)) return 7;
  return wrong(m, PAGE, LEN, 1) == 0 ? 5 : 6;
}

static void creations(char *m) {
  extern char **environ;
  static char stack[256 << 10];
  pid_t pid = clone(in_clone, stack + sizeof stack, SIGCHLD, m);
  say("clone %d, mine %d", ended(pid), m[0]);
  pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) _exit(in_clone(m));
  say("SYS_clone %d, mine %d", ended(pid), m[0]);
  pid = _Fork();
  if (pid == 0) _exit(in_clone(m));
  say("_Fork %d, mine %d", ended(pid), m[0]);
  pid = vfork();
  if (pid == 0) _exit(3);
  say("vfork %d, mine %zu", ended(pid), wrong(m, 0, LEN, 1));
  char *arguments[] = {"sh", "-c", "exit 4", NULL};
  say("spawn %d", posix_spawn(&pid, "/bin/sh", NULL, NULL, arguments, environ));
  say("spawned %d, system %d", ended(pid), system("exit 3"));
  FILE *from = popen("echo hello", "r");
  char word[16] = "";
  if (fscanf(from, "%15s", word) != 1) _exit(96);
  say("popen %s %d, mine %zu", word, pclose(from), wrong(m, 0, LEN, 1));
  pid = fork();
  if (pid == 0) {
    execl("/bin/sh", "sh", "-c", "exit 9", NULL);
    _exit(1);
  }
  say("exec %d", ended(pid));
  say("dlopen %d", dlopen("libm.so.6", RTLD_NOW) != NULL);
}

static void many_children(char *m) {
  pid_t pids[8];
  for (int i = 0; i < 8; i++) {
    m[i * MIB] = i + 100;
    pids[i] = fork();
    if (pids[i] == 0) {
      int right = 1;
      for (int k = 0; k < 8; k++) right &= m[k * MIB] == (k <= i ? k + 100 : 1 + (char)(k * 256 % 31));
      for (int k = 0; k < 8; k++) m[k * MIB + PAGE] = 0;
      _exit(right ? 0 : 1);
    }
  }
  int all = 0;
  for (int i = 0; i < 8; i++) all |= ended(pids[i]);
  say("eight children %d, mine %zu", all, wrong(m, PAGE, MIB, 1));
  /* One that outlives the process between. */
  int ends[2];
  if (pipe(ends)) _exit(97);
  pid_t pid = fork();
  if (pid == 0) {
    pid_t between = getpid();
    if (fork() == 0) {
      while (getppid() == between) sched_yield();
      char right = wrong(m, 9 * PAGE, MIB, 1) == 0;
      m[9 * PAGE] = 0;
      if (write(ends[1], &right, 1) != 1) _exit(1);
      _exit(0);
    }
    _exit(0);
  }
  ended(pid);
  char right = 0;
  if (read(ends[0], &right, 1) != 1) right = 9;
  say("orphan %d, mine %zu", right, wrong(m, PAGE, MIB, 1));
  close(ends[0]);
  close(ends[1]);
}

static void *forks(void *m) {
  long bad = 0;
  for (int i = 0; i < 20; i++) {
    pid_t pid = fork();
    if (pid == 0) _exit(wrong(m, 2 * MIB, 3 * MIB, 1) == 0 ? 0 : 1);
    bad += pid < 0 || ended(pid) != 0;
  }
  return (void *)bad;
}

static void threads(char *m) {
  pthread_t ids[4];
  long bad = 0;
  for (int i = 0; i < 4; i++) pthread_create(&ids[i], NULL, forks, m);
  for (int i = 0; i < 4; i++) {
    void *answer;
    pthread_join(ids[i], &answer);
    bad += (long)answer;
  }
  say("forks from four threads, bad %ld", bad);
}

static char *counted;
static volatile long signals;
static void on_alarm(int signal) {
  (void)signal;
  signals++;
  ++*(volatile long *)counted;
}

static void interrupted(char *m) {
  counted = m + 3 * MIB;
  *(long *)counted = 0;
  signals = 0;
  struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, old;
  sigaction(SIGALRM, &action, &old);
  struct itimerval every = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &every, NULL);
  long bad = 0;
  for (int i = 0; i < 50 || signals < 20; i++) {
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    bad += pid < 0 || ended(pid) != 0;
  }
  setitimer(ITIMER_REAL, &never, NULL);
  sigaction(SIGALRM, &old, NULL);
  say("signals during forks: bad %ld, lost %ld", bad, signals - *(long *)counted);
  fill(m, LEN, 1);
}

struct common {
  pthread_mutex_t mutex;
  long count;
};

static void shared_memory(void) {
  struct common *common = mmap(NULL, MIB, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&common->mutex, &attributes);
  pid_t pids[3];
  for (int i = 0; i < 3; i++) {
    pids[i] = fork();
    if (pids[i] == 0) {
      for (int k = 0; k < 10000; k++) {
        pthread_mutex_lock(&common->mutex);
        common->count++;
        pthread_mutex_unlock(&common->mutex);
      }
      _exit(0);
    }
  }
  for (int i = 0; i < 3; i++) ended(pids[i]);
  say("process-shared mutex %ld", common->count);
  munmap(common, MIB);
}

/* So many that the kernel uses every hole it finds. */
static void many_mappings(void) {
  enum { COUNT = 64 };
  const size_t len = 64 * MIB;
  char *all[COUNT];
  size_t stale = 0, left = 0;
  for (int i = 0; i < COUNT; i++) {
    all[i] = mmap(NULL, len, RW, PRIVATE | MAP_NORESERVE, -1, 0);
    all[i][0] = all[i][len - 1] = 7;
  }
  for (int i = 0; i < COUNT; i++) stale += all[i][0] != 7 || all[i][len - 1] != 7;
  say("many mappings, wrong %zu", stale);
  stale = 0;
  for (int i = 0; i < COUNT; i++) {
    madvise(all[i], len, MADV_DONTNEED);
    stale += all[i][0] != 0 || all[i][len - 1] != 0;
  }
  for (int i = 0; i < COUNT; i++) {
    unsigned char there;
    munmap(all[i], len);
    left += touch(all[i], 0) == 0 && mincore(all[i], PAGE, &there) == 0;
  }
  say("stale %zu, left %zu", stale, left);
}

static void run(void (*check)(char *), char *given) {
  char *m = given ? given : fresh();
  fill(m, LEN, 1);
  check(m);
  if (!given) munmap(m, LEN);
}

#define CHECKS 9
static void (*const checks[CHECKS])(char *) = {discards, protections, placements, advice, residence, calls_into,
                                                creations, many_children, interrupted};

/* With memory that is mapped here, and with memory that was there before. */
static void all(const char *context, char **old) {
  where = context;
  for (int i = 0; i < CHECKS; i++) {
    run(checks[i], NULL);
    say("-- the same with older memory");
    /* It is as the last fork left it: not written since. */
    checks[i](old[i]);
  }
  run(moves, fresh());
  moves(old[CHECKS]);
  char *left = fresh();
  fill(left, LEN, 1);
  moves_of_what_left(left);
  run(threads, NULL);
  many_mappings();
  shared_memory();
}

static char order[16];
static void note(char it) { order[strlen(order)] = it; }
static void before_1(void) { note('1'); }
static void before_2(void) { note('2'); }
static void parent_1(void) { note('3'); }
static void parent_2(void) { note('4'); }
static void child_1(void) { note('5'); }
static void child_2(void) { note('6'); }

static void olden(char **old) {
  for (int i = 0; i <= CHECKS; i++) {
    old[i] = fresh();
    fill(old[i], LEN, 1);
  }
}

int main(void) {
  struct sigaction action = {.sa_handler = on_fault};
  sigaction(SIGSEGV, &action, NULL);
  sigaction(SIGBUS, &action, NULL);
  char *old[CHECKS + 1];
  olden(old);
  all("live", old);

  olden(old);
  int leash[2];
  if (pipe(leash)) return 97;
  pid_t reader = fork();
  if (reader == 0) {
    char end;
    close(leash[1]);
    ssize_t n = read(leash[0], &end, 1);
    size_t bad = 0;
    for (int i = 0; i <= CHECKS; i++) bad += wrong(old[i], 0, LEN, 1);
    where = "the reader";
    say("closed %zd, wrong pages %zu", n, bad);
    _exit(0);
  }
  all("frozen", old);
  close(leash[1]);
  close(leash[0]);
  where = "main";
  say("reader %d", ended(reader));

  olden(old);
  pid_t child = fork();
  if (child == 0) {
    all("child", old);
    olden(old);
    pid_t grandchild = fork();
    if (grandchild == 0) {
      all("grandchild", old);
      _exit(0);
    }
    _exit(ended(grandchild) ? 1 : 0);
  }
  say("child %d", ended(child));

  pthread_atfork(before_1, parent_1, child_1);
  pthread_atfork(before_2, parent_2, child_2);
  child = fork();
  if (child == 0) {
    say("handlers of a child %s", order);
    _exit(0);
  }
  say("child %d, handlers %s", ended(child), order);
  return 0;
}
