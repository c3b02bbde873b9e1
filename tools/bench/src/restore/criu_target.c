// A process for CRIU: memory of random words. On SIGUSR1 it reads a word of every page in order and
// checks it, writes "first_ns total_ns wrong_bytes" to a file, and ends.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static uint64_t word(uint64_t i) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv) {
  if (argc != 4)
    return 2;
  size_t words = strtoull(argv[1], 0, 10) / 8, in_page = 4096 / 8;
  volatile uint64_t *memory =
      mmap(0, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return 1;
  for (size_t i = 0; i < words; i++)
    memory[i] = word(i);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, 0);
  int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; fd++)
    dup2(null, fd);
  close(null);
  close(creat(argv[2], 0600)); // ready
  int signal;
  sigwait(&set, &signal);
  size_t wrong = 0;
  double began = now_ns(), first = 0;
  for (size_t i = 0; i < words; i += in_page) {
    wrong += memory[i] == word(i) ? 0 : 8;
    if (i == 0)
      first = now_ns();
  }
  double ended = now_ns();
  char partial[4096];
  snprintf(partial, sizeof partial, "%s.partial", argv[3]);
  FILE *out = fopen(partial, "w");
  if (!out)
    return 1;
  fprintf(out, "%.0f %.0f %zu\n", first - began, ended - began, wrong);
  return fclose(out) || rename(partial, argv[3]);
}
