/* Handles the page faults of some of its memory, before and after forks, and prints what it read there. Natively and under
 * Cowslip it has to print the same. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul

static int handler;
static volatile int served;

static void *serve(void *unused) {
  static char page[PAGE];
  struct uffd_msg message;
  memset(page, 'h', PAGE);
  while (read(handler, &message, sizeof message) == sizeof message) {
    struct uffdio_copy copy = {.dst = message.arg.pagefault.address & ~(PAGE - 1), .src = (unsigned long)page, .len = PAGE};
    served++;
    ioctl(handler, UFFDIO_COPY, &copy);
  }
  return unused;
}

struct move { unsigned long to, from, len, mode; long moved; };
#define MOVE _IOWR(UFFDIO, 0x05, struct move)

/* Moves pages, where the kernel can. Done to memory that another thread cannot use. */
static void move(char *to, char *from) {
  int mover = syscall(SYS_userfaultfd, O_CLOEXEC);
  struct uffdio_api api = {.api = UFFD_API, .features = 1 << 16};
  struct uffdio_register target = {.range = {(unsigned long)to, 2 * MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  struct move pages = {(unsigned long)to, (unsigned long)from, 16 * PAGE, 0, 0};
  int can = ioctl(mover, UFFDIO_API, &api) == 0;
  ioctl(mover, UFFDIO_REGISTER, &target);
  ioctl(mover, MOVE, &pages);
  printf("moved %ld %c\n", pages.moved, can && pages.moved == 16 * PAGE ? to[15 * PAGE] : '-');
  close(mover);
}

int main(void) {
  char *m = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  m = (char *)(((size_t)m + 2 * MIB - 1) & ~(2 * MIB - 1));
  memset(m + 4 * MIB, 'm', 4 * MIB);
  memset(m + 10 * MIB, 'n', 2 * MIB);
  handler = syscall(SYS_userfaultfd, O_CLOEXEC);
  struct uffdio_api api = {.api = UFFD_API};
  if (handler < 0 || ioctl(handler, UFFDIO_API, &api)) {
    printf("SKIPPED: %s\n", strerrorname_np(errno));
    return 0;
  }
  struct uffdio_register by_name = {.range = {(unsigned long)m, 2 * MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  struct uffdio_register by_number = {.range = {(unsigned long)m + 2 * MIB, 2 * MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  printf("registered %d %ld\n", ioctl(handler, UFFDIO_REGISTER, &by_name), syscall(SYS_ioctl, handler, UFFDIO_REGISTER, &by_number));
  printf("not there %d\n", ioctl(handler, UFFDIO_REGISTER, NULL));
  move(m + 8 * MIB, m + 10 * MIB);
  pthread_t thread;
  pthread_create(&thread, NULL, serve, NULL);
  for (int round = 0; round < 3; round++) {
    pid_t pid = fork();
    if (pid == 0) _exit(m[4 * MIB] == 'm' ? 0 : 1);
    char *at = m + round * 10 * PAGE;
    printf("read %c %c, served %d\n", at[0], at[2 * MIB], served);
    madvise(at, PAGE, MADV_DONTNEED);
    printf("read again %c, served %d\n", at[0], served);
    int status;
    waitpid(pid, &status, 0);
    printf("child %d, others %c\n", status, m[4 * MIB + 5 * PAGE]);
  }
  return 0;
}
