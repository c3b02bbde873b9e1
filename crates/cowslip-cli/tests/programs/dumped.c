/* Ends with a core dump in the folder it is in: a forked child first, that changed nothing, then the program itself, after
 * a fork and before it changed anything. 32 MiB are full of one word. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN (32ul << 20)

int main(void) {
  struct rlimit most = {RLIM_INFINITY, RLIM_INFINITY};
  if (setrlimit(RLIMIT_CORE, &most)) return 90;
  unsigned long *m = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) return 91;
  for (size_t i = 0; i < LEN / sizeof *m; i++) m[i] = 0x6d75706465640000ul + i;
  for (int both = 0; both < 2; both++) {
    pid_t pid = fork();
    if (pid == 0) {
      if (both == 0) raise(SIGABRT);
      _exit(0);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid) return 92;
    if (both == 0) {
      if (!WIFSIGNALED(status) || !WCOREDUMP(status) || rename("core", "of_child")) {
        printf("SKIPPED: no core dump here\n");
        return 0;
      }
      usleep(100000);
    }
  }
  raise(SIGABRT);
  return 93;
}
