// Memory that is made to deceive who looks at it. Says "ready", and waits for the end of its input.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char *what) {
  perror(what);
  exit(1);
}

// A page of counters that is as long as a disk.
static void counters(void) {
  off_t length = (off_t)1 << 40;
  int file = memfd_create("cowslip-status", 0);
  if (file < 0 || ftruncate(file, length)) fail("memfd");
  if (mmap(NULL, length, PROT_READ, MAP_SHARED | MAP_NORESERVE, file, 0) == MAP_FAILED) fail("mmap");
}

// Mappings with names as long as they can be.
static void names(void) {
  char part[201];
  memset(part, 'n', 200);
  part[200] = 0;
  for (int i = 0; i < 18; i++)
    if ((mkdir(part, 0700) && access(part, X_OK)) || chdir(part)) fail("mkdir");
  int file = open(part, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, 2 << 20)) fail("open");
  // Neighbours differ, so that the kernel keeps them apart.
  for (int i = 0; i < 40000; i++) {
    int protection = i % 2 ? PROT_READ : PROT_READ | PROT_WRITE;
    if (mmap(NULL, 4096, protection, MAP_SHARED, file, 0) == MAP_FAILED) fail("mmap");
  }
}

// A file of this folder that is named as a page of counters is.
static void file(void) {
  int file = open("cowslip-status", O_RDONLY);
  if (file < 0 || mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0) == MAP_FAILED) fail("cowslip-status");
}

// A page of counters that is never there: its faults are waited for, and not answered.
static void held(void) {
  int file = memfd_create("cowslip-status", 0);
  if (file < 0 || ftruncate(file, 4096)) fail("memfd");
  void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
  struct uffdio_api api = {.api = UFFD_API};
  struct uffdio_register all = {{(unsigned long)page, 4096}, UFFDIO_REGISTER_MODE_MISSING, 0};
  if (page == MAP_FAILED || faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &all))
    fail("userfaultfd");
}

// hostile counters|names|file|held|nothing
int main(int argc, char **argv) {
  const char *kind = argc == 2 ? argv[1] : "";
  if (!strcmp(kind, "counters")) counters();
  if (!strcmp(kind, "names")) names();
  if (!strcmp(kind, "file")) file();
  if (!strcmp(kind, "held")) held();
  puts("ready");
  fflush(stdout);
  while (getchar() != EOF) {
  }
  return 0;
}
