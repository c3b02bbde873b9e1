/* A program that is promoted: it does what it is told to on its standard input, and knows what every byte of
 * its memory should be. Pages that were filled hold a pattern, except for one word that the writer counts in. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define REGION (2ul << 20)
#define WORDS (PAGE / 8)
#define COUNTED 5

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

static uint64_t *memory;
static size_t regions;
/* 2: given back lazily, so that it holds the pattern until the kernel takes it. */
static unsigned char *is_filled;
static atomic_int writes;
static uint64_t rounds;
static pthread_t writer;

static uint64_t pattern(size_t page, size_t word) {
  return (page * WORDS + word + 1) * 0x9e3779b97f4a7c15ul;
}

static _Atomic uint64_t *counter(size_t page) { return (_Atomic uint64_t *)&memory[page * WORDS + COUNTED]; }

static void map(size_t wanted) {
  char *at = mmap(0, (wanted + 1) * REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memory = (uint64_t *)(((uintptr_t)at + REGION - 1) & ~(REGION - 1));
  regions = wanted;
  is_filled = calloc(regions * 512, 1);
}

enum kind { NAMELESS, MEMFD, DEV_SHM, SYSTEM_V, SEALED, MISALIGNED };

/* Shared memory instead, of one of these kinds. */
static void map_shared(size_t wanted, enum kind kind) {
  map(wanted);
  size_t bytes = wanted * REGION;
  int file = -1, flags = MAP_SHARED | MAP_FIXED;
  if (kind == SYSTEM_V) {
    int segment = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
    shmat(segment, memory, SHM_REMAP);
    shmctl(segment, IPC_RMID, 0);
    return;
  }
  if (kind == NAMELESS) {
    flags |= MAP_ANONYMOUS;
  } else if (kind == DEV_SHM) {
    char name[64];
    snprintf(name, sizeof name, "/dev/shm/promoted-%d", getpid());
    file = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    unlink(name);
  } else {
    file = memfd_create("shared", MFD_ALLOW_SEALING);
  }
  if (file >= 0 && ftruncate(file, (off_t)(bytes + PAGE)))
    exit(1);
  if (kind == SEALED && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
    exit(1);
  mmap(memory, bytes, PROT_READ | PROT_WRITE, flags, file, kind == MISALIGNED ? PAGE : 0);
}

/* Memory of no whole number of regions: none of the pattern. */
static void touch(size_t pages) {
  char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(at, pages * PAGE, MADV_NOHUGEPAGE);
  memset(at, 1, pages * PAGE);
  madvise(at, pages * PAGE, MADV_HUGEPAGE);
}

/* Memory in pieces of 256 KiB, each a mapping of its own as V8's are. */
static void scatter(size_t pieces) {
  for (size_t i = 0; i < pieces; i++) {
    size_t bytes = 64 * PAGE;
    char *at = mmap(0, bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(at, bytes, PROT_READ | PROT_WRITE);
    memset(at, 1, bytes);
  }
}

/* The first page of so many pieces of 256 KiB, each a mapping of its own; they may ask for huge pages. */
static void fault(size_t pieces, int asks) {
  size_t bytes = 64 * PAGE;
  for (size_t i = 0; i < pieces; i++) {
    char *at = mmap(0, 2 * bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    at = (char *)(((uintptr_t)at + bytes - 1) & ~(bytes - 1));
    mprotect(at, bytes, PROT_READ | PROT_WRITE);
    if (asks)
      madvise(at, bytes, MADV_HUGEPAGE);
    *at = 1;
  }
}

static void fault_in(size_t region, size_t pages) {
  for (size_t page = region * 512; page < region * 512 + pages; page++) {
    for (size_t word = 0; word < WORDS; word++)
      memory[page * WORDS + word] = word == COUNTED ? 0 : pattern(page, word);
    is_filled[page] = 1;
  }
}

/* With base pages, also where the system gives huge ones to everybody. */
static void fill(size_t region, size_t pages) {
  int before = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  fault_in(region, pages);
  /* Its second bit is a flag of Linux 6.18. */
  prctl(PR_SET_THP_DISABLE, before & 1, before & 2, 0, 0);
}

static void *write_on(void *unused) {
  while (atomic_load(&writes)) {
    for (size_t page = 0; page < regions * 512; page += 7)
      if (is_filled[page])
        atomic_fetch_add(counter(page), 1);
    rounds++;
  }
  return unused;
}

/* Units of work for a turn on base pages and on huge ones: a gain that does not depend on the machine. */
static atomic_int serves;
static size_t units_on_base, units_on_huge;
static pthread_t server;

static int has_huge_pages(void) {
  char text[4096];
  int file = open("/proc/self/smaps_rollup", O_RDONLY);
  ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  text[length > 0 ? length : 0] = 0;
  char *line = strstr(text, "AnonHugePages:");
  return line && atol(line + strlen("AnonHugePages:")) > 0;
}

static uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void *serve_on(void *unused) {
  int file = open("units", O_WRONLY | O_CREAT, 0644), log = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
  size_t units = 0, more = 0;
  uint64_t next_look_ms = 0;
  while (atomic_load(&serves)) {
    for (volatile int i = 0; i < 1000000; i++)
      ;
    /* Seldom, however long a turn is: the kernel's walk over base pages takes a millisecond. */
    if (now_ms() >= next_look_ms) {
      more = has_huge_pages() ? units_on_huge : units_on_base;
      next_look_ms = now_ms() + 20;
    }
    units += more;
    dprintf(log, "%.*s", (int)more, "\n\n\n\n\n\n\n\n");
    char text[32];
    if (pwrite(file, text, snprintf(text, sizeof text, "%020zu\n", units), 0) < 0)
      break;
  }
  return unused;
}

/* How many words are not what they should be. */
static size_t wrong_words(void) {
  size_t wrong = 0;
  for (size_t page = 0; page < regions * 512; page++)
    for (size_t word = 0; word < WORDS; word++) {
      uint64_t wanted = 0;
      if (is_filled[page] == 2 && !memory[page * WORDS + word])
        continue;
      if (is_filled[page])
        wanted = word == COUNTED ? (page % 7 ? 0 : rounds) : pattern(page, word);
      wrong += memory[page * WORDS + word] != wanted;
    }
  return wrong;
}

int main(void) {
  char command[16];
  size_t a = 0, b = 0;
  int leash[2];
  pid_t child = 0;
  char line[80];
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "%15s %zu %zu", command, &a, &b) < 1)
      continue;
    if (!strcmp(command, "map")) {
      map(a);
      printf("%#lx\n", (unsigned long)memory);
    } else if (!strcmp(command, "map_shared")) {
      map_shared(a, (enum kind)b);
      printf("%#lx\n", (unsigned long)memory);
    } else if (!strcmp(command, "fill")) {
      fill(a, b);
      puts("done");
    } else if (!strcmp(command, "fault_in")) {
      fault_in(a, b);
      puts("done");
    } else if (!strcmp(command, "odd")) {
      touch(a);
      puts("done");
    } else if (!strcmp(command, "scatter")) {
      scatter(a);
      puts("done");
    } else if (!strcmp(command, "fault")) {
      fault(a, (int)b);
      puts("done");
    } else if (!strcmp(command, "huge")) {
      printf("%d\n", madvise((char *)memory + a * REGION, b * REGION, MADV_COLLAPSE));
    } else if (!strcmp(command, "ask")) {
      printf("%d\n", madvise(memory, regions * REGION, MADV_HUGEPAGE));
    } else if (!strcmp(command, "refuse_some")) {
      printf("%d\n", madvise((char *)memory + a * REGION, b * REGION, MADV_NOHUGEPAGE));
    } else if (!strcmp(command, "except_advised")) {
      printf("%d\n", prctl(PR_SET_THP_DISABLE, 1, 2, 0, 0));
    } else if (!strcmp(command, "refuse")) {
      printf("%d\n", prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    } else if (!strcmp(command, "release")) {
      madvise((char *)memory + a * REGION, b * PAGE, MADV_DONTNEED);
      memset(is_filled + a * 512, 0, b);
      puts("done");
    } else if (!strcmp(command, "free")) {
      printf("%d\n", madvise((char *)memory + a * REGION, b * REGION, MADV_FREE));
      memset(is_filled + a * 512, 2, b * 512);
    } else if (!strcmp(command, "page_out")) {
      printf("%d\n", madvise((char *)memory + a * REGION, b * PAGE, MADV_PAGEOUT));
    } else if (!strcmp(command, "write")) {
      atomic_store(&writes, 1);
      pthread_create(&writer, 0, write_on, 0);
      puts("done");
    } else if (!strcmp(command, "rest")) {
      atomic_store(&writes, 0);
      pthread_join(writer, 0);
      printf("%lu\n", (unsigned long)rounds);
    } else if (!strcmp(command, "serve")) {
      units_on_base = a, units_on_huge = b;
      atomic_store(&serves, 1);
      pthread_create(&server, 0, serve_on, 0);
      puts("done");
    } else if (!strcmp(command, "fork") || !strcmp(command, "fork_and_read")) {
      int has_read[2];
      if (pipe(leash) || pipe(has_read))
        return 1;
      child = fork();
      if (!child) {
        close(leash[1]);
        if (!strcmp(command, "fork_and_read") && wrong_words())
          _exit(1);
        close(has_read[0]);
        close(has_read[1]);
        if (read(leash[0], line, 1))
          return 1;
        _exit(wrong_words() != 0);
      }
      close(leash[0]);
      close(has_read[1]);
      if (read(has_read[0], line, 1))
        return 1;
      close(has_read[0]);
      puts("done");
    } else if (!strcmp(command, "reap")) {
      int status;
      close(leash[1]);
      waitpid(child, &status, 0);
      printf("%d\n", status);
    } else if (!strcmp(command, "exec")) {
      puts("done");
      fflush(stdout);
      execl("/proc/self/exe", "promoted", (char *)0);
      return 1;
    } else if (!strcmp(command, "check")) {
      printf("%zu\n", wrong_words());
    }
    fflush(stdout);
  }
  return 0;
}
