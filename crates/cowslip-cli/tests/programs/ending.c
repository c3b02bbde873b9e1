/* Threads that use the heap and end by a system call, past libc; their stacks, with all that lies there, are gone then.
 * The process forks, and other threads begin. Prints how many ended so. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TURNS = 150, STACK = 256 << 10 };

static void use_heap(void) {
  for (int i = 1; i < 200; i++) {
    /* Not seen through by the compiler. */
    char *volatile block = malloc(i * 40);
    memset(block, i, i * 40);
    free(block);
  }
}

static void *ends(void *unused) {
  use_heap();
  syscall(SYS_exit, 0);
  return unused;
}

static void *returns(void *unused) {
  use_heap();
  return unused;
}

int main(void) {
  /* Beyond what stays with glibc's malloc. */
  char *large = malloc(4 << 20);
  memset(large, 1, 4 << 20);
  int ended = 0;
  for (int turn = 0; turn < TURNS; turn++) {
    pthread_attr_t attributes;
    pthread_t thread, other;
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_init(&attributes);
    if (stack == MAP_FAILED || pthread_attr_setstack(&attributes, stack, STACK)) return 2;
    if (pthread_create(&thread, &attributes, ends, NULL) || pthread_join(thread, NULL)) return 3;
    /* Nothing comes there again. */
    if (mmap(stack, STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != stack) return 4;
    if (pthread_create(&other, NULL, returns, NULL) || pthread_join(other, NULL)) return 6;
    ended++;
    if (turn % 10 == 0) {
      int status = -1;
      pid_t pid = fork();
      if (pid == 0) {
        use_heap();
        _exit(large[3 << 20] != 1);
      }
      if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) return 5;
    }
  }
  printf("%d ended\n", ended);
  return 0;
}
