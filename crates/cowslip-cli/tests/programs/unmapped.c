/* Touches memory that it gave back, before a fork, after it and in children, pages memory in by its fault handler, and has
 * mappings in the holes that no library sees. Natively and under Cowslip it has to print the same. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#define RW (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

static sigjmp_buf after_fault;
static volatile int code;
static void *volatile at;

/* Of the pager: what its memory should show, a page each. */
static char *paged;
static size_t paged_len;
static char content[256];
static volatile int fetched;

static void on_fault(int signal, siginfo_t *info, void *context) {
  (void)context;
  char *address = info->si_addr;
  if (signal == SIGSEGV && paged && address >= paged && address < paged + paged_len && info->si_code == SEGV_MAPERR) {
    char *page = (char *)((unsigned long)address & ~(PAGE - 1));
    if (mmap(page, PAGE, RW, PRIVATE | MAP_FIXED, -1, 0) != page) _exit(90);
    memset(page, content[(page - paged) / PAGE % sizeof content], PAGE);
    fetched++;
    return;
  }
  code = signal == SIGSEGV ? info->si_code : 100 + signal;
  at = address;
  siglongjmp(after_fault, 1);
}

static const char *touch(char *address, int writes) {
  if (sigsetjmp(after_fault, 1)) {
    if (at != address) return "elsewhere";
    return code == SEGV_MAPERR ? "unmapped" : code == SEGV_ACCERR ? "denied" : "another signal";
  }
  char it = *(volatile char *)address;
  if (writes) *(volatile char *)address = it;
  return "nothing";
}

static char *fresh(size_t len) {
  char *m = mmap(NULL, len, RW, PRIVATE, -1, 0);
  if (m == MAP_FAILED) _exit(91);
  for (size_t i = 0; i < len; i += PAGE) m[i] = (char)(i / PAGE % 127 + 1);
  return m;
}

static size_t wrong(const char *m, size_t from, size_t to) {
  size_t bad = 0;
  for (size_t i = from; i < to; i += PAGE) bad += m[i] != (char)(i / PAGE % 127 + 1);
  return bad;
}

static void ends(pid_t pid) {
  int status;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
    printf("a child: %x\n", pid < 0 ? -1 : status);
    exit(1);
  }
}

static void look(const char *who, char *m) {
  printf("%s: pages %s %s, chunks %s %s, tail %s, denied %s, beside %s %s, %zu wrong\n", who, touch(m + 5 * PAGE + 7, 0),
         touch(m + 5 * PAGE, 1), touch(m + 8 * MIB, 0), touch(m + 13 * MIB + 9, 1), touch(m + 31 * MIB, 0),
         touch(m + 20 * MIB, 0), touch(m + 4 * PAGE, 1), touch(m + 6 * PAGE, 1),
         wrong(m, 6 * PAGE, 8 * MIB) + wrong(m, 14 * MIB, 20 * MIB) + wrong(m, 21 * MIB, 30 * MIB));
  fflush(stdout);
}

/* Holes among stacks and libraries, where the next mapping is put that fits. */
static void small(void) {
  enum { COUNT = 4, PAGES = 128 };
  char *m[COUNT];
  for (int i = 0; i < COUNT; i++) m[i] = mmap(NULL, PAGES * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < COUNT; i++) munmap(m[i] + PAGE, (PAGES - 2) * PAGE);
  for (int round = 0; round < 6; round++) {
    pid_t pid = fork();
    int touched = 0;
    for (int i = 0; i < COUNT; i++)
      for (int page = 1; page < PAGES - 1; page++) touched += strcmp(touch(m[i] + page * PAGE, round % 2), "unmapped") != 0;
    if (pid == 0) _exit(touched > 0);
    ends(pid);
    printf("small: %d touched\n", touched);
    fflush(stdout);
    usleep(30000);
  }
}

static void holes(void) {
  char *m = fresh(32 * MIB);
  munmap(m + 5 * PAGE, PAGE);
  munmap(m + 8 * MIB, 6 * MIB);
  mprotect(m + 20 * MIB, MIB, PROT_NONE);
  mremap(m, 0, 0, 0); /* refused */
  if (mremap(m + 21 * MIB, 11 * MIB, 9 * MIB, 0) != m + 21 * MIB) _exit(92);
  for (int round = 0; round < 3; round++) {
    look("before", m);
    pid_t pid = fork();
    if (pid == 0) {
      look("child", m);
      pid_t grandchild = fork();
      if (grandchild == 0) {
        look("grandchild", m);
        _exit(0);
      }
      ends(grandchild);
      _exit(0);
    }
    ends(pid);
    look("after", m);
    usleep(60000);
  }
  /* What was given back can be had again, and reads zeroes. */
  char *again = mmap(m + 5 * PAGE, PAGE, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0);
  printf("again %d %d\n", again == m + 5 * PAGE, again[0]);
  char *larger = mmap(m + 8 * MIB, 6 * MIB, RW, PRIVATE | MAP_FIXED, -1, 0);
  printf("again %d %d %s\n", larger == m + 8 * MIB, larger[5 * MIB], touch(m + 31 * MIB, 0));
  munmap(m, 32 * MIB);
  printf("all of it %s %s\n", touch(m, 0), touch(m + 29 * MIB, 1));
}

/* Drops pages, and fetches them when they are touched, with new content each time. */
static void pager(void) {
  paged_len = 16 * MIB;
  paged = fresh(paged_len);
  size_t bad = 0, unseen = 0;
  for (int round = 1; round <= 20; round++) {
    for (size_t i = 0; i < sizeof content; i++) content[i] = (char)(round + i);
    pid_t pid = round % 3 == 0 ? fork() : -1;
    for (size_t page = round % 7; page < paged_len / PAGE; page += 97) {
      char *address = paged + page * PAGE;
      int before = fetched;
      munmap(address, PAGE);
      bad += address[9] != content[page % sizeof content];
      unseen += fetched != before + 1;
    }
    if (pid == 0) _exit(bad + unseen > 0);
    if (pid > 0) ends(pid);
  }
  printf("pager: %zu wrong, %zu unseen\n", bad, unseen);
  munmap(paged, paged_len);
  paged = NULL;
}

/* Asks the kernel past every library. */
static char *map_unseen(char *where, size_t len) {
#ifdef __x86_64__
  register long flags __asm__("r10") = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  register long fd __asm__("r8") = -1;
  register long offset __asm__("r9") = 0;
  long answer = SYS_mmap;
  __asm__ volatile("syscall"
                   : "+a"(answer)
                   : "D"(where), "S"(len), "d"(RW), "r"(flags), "r"(fd), "r"(offset)
                   : "rcx", "r11", "memory");
  return (char *)answer;
#else
  return mmap(where, len, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
#endif
}

/* A mapping that is refused changes nothing: neither what lies there, nor what does not. */
static void refused(void) {
  char *m = fresh(32 * MIB);
  munmap(m + 8 * MIB, 5 * PAGE);
  for (int round = 0; round < 2; round++) {
    char *over = mmap(m + 8 * MIB, MIB, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0);
    printf("refused %d, then %s %s\n", over == MAP_FAILED, touch(m + 8 * MIB + PAGE, 0), touch(m + 8 * MIB + PAGE, 1));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit(strcmp(touch(m + 8 * MIB, 0), "unmapped") != 0);
    ends(pid);
    printf("after a fork %s, %zu wrong\n", touch(m + 8 * MIB + PAGE, 1), wrong(m, 0, 8 * MIB) + wrong(m, 9 * MIB, 32 * MIB));
  }
}

static void others(void) {
  char *m = fresh(32 * MIB);
  munmap(m + 4 * MIB, 12 * MIB);
  char *theirs = m + 6 * MIB + 3 * PAGE;
  printf("theirs %d\n", map_unseen(theirs, 2 * PAGE) == theirs);
  for (int round = 0; round < 3; round++) {
    theirs[PAGE] = (char)(10 + round);
    char *more[6];
    for (int i = 0; i < 6; i++) more[i] = fresh(4 * MIB);
    pid_t pid = fork();
    if (pid == 0) {
      theirs[0] = (char)(20 + round);
      _exit(theirs[PAGE] != 10 + round || wrong(m, 16 * MIB, 32 * MIB) > 0);
    }
    ends(pid);
    size_t bad = wrong(m, 0, 4 * MIB) + wrong(m, 16 * MIB, 32 * MIB);
    for (int i = 0; i < 6; i++) bad += wrong(more[i], 0, 4 * MIB);
    usleep(60000);
    printf("shared %d %d, %zu wrong\n", theirs[0], theirs[PAGE], bad);
    for (int i = 0; i < 6; i++) munmap(more[i], 4 * MIB);
  }
  char *over = mmap(theirs, PAGE, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0);
  printf("over it %s\n", over == MAP_FAILED ? "refused" : "mapped");
  over = mmap(m + 4 * MIB, 12 * MIB, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0);
  printf("over all of it %s, beside it %s\n", over == MAP_FAILED ? "refused" : "mapped", touch(m + 5 * MIB, 1));
  fflush(stdout);
  ends(fork() ?: (_exit(0), 0));
  printf("after a fork %s\n", touch(m + 5 * MIB, 1));
  munmap(theirs, 2 * PAGE);
  printf("given back %s\n", touch(theirs, 0));
}

int main(void) {
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSEGV, &action, NULL);
  sigaction(SIGBUS, &action, NULL);
  /* An arena is worth it from here on. */
  char *large = fresh(64 * MIB);
  small();
  holes();
  pager();
  refused();
  others();
  printf("%zu wrong\n", wrong(large, 0, 64 * MIB));
  return 0;
}
