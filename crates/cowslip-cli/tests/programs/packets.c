/* Registers large memory for packets (AF_XDP), by name and by number, while it forks. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/if_xdp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#ifndef SOL_XDP
#define SOL_XDP 283
#endif

int main(void) {
  char *m = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) return 90;
  memset(m, 1, 64 * MIB);
  for (int by_number = 0; by_number < 2; by_number++) {
    int fd = socket(AF_XDP, SOCK_RAW, 0);
    if (fd < 0) {
      printf("SKIPPED: AF_XDP: %s\n", strerrorname_np(errno));
      return 0;
    }
    struct xdp_umem_reg umem = {.addr = (unsigned long)m + (8 + 8 * by_number) * MIB, .len = 4 * MIB, .chunk_size = 2048};
    long answer = by_number ? syscall(SYS_setsockopt, fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof umem)
                            : setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof umem);
    pid_t pid = fork();
    if (pid == 0) _exit(m[8 * MIB] != 1);
    int status;
    if (waitpid(pid, &status, 0) != pid || status) return 92;
    printf("registered %ld\n", answer);
  }
  return 0;
}
