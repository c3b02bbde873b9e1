/* Has another program write to memory that was made executable, between forks: so a debugger sets a
 * breakpoint. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

int main(void) {
  char *m = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  m = (char *)(((size_t)m + 2 * MIB - 1) & ~(2 * MIB - 1));
  memset(m, 'm', 16 * MIB);
  for (int round = 0; round < 3; round++) {
    char *code = m + 4 * MIB, command[128];
    int status;
    if (mprotect(code, 2 * MIB, PROT_READ | PROT_EXEC)) return 90;
    /* Started without a freeze. */
    snprintf(command, sizeof command, "printf %d | dd of=/proc/%d/mem bs=1 seek=%lu conv=notrunc 2>/dev/null", round, getpid(), (unsigned long)code + 99);
    printf("written: %d, %.3s\n", system(command), code + 98);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit(code[99] != '0' + round || m[MIB] != 'm');
    waitpid(pid, &status, 0);
    printf("child %d\n", status);
    mprotect(code, 2 * MIB, PROT_READ | PROT_WRITE);
    code[98] = 'n';
  }
  return 0;
}
