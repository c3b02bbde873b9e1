// Waits for a thread that computes, in the kernel or in a loop: spin sleep|spin ROUNDS.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_int done;

static void *compute(void *rounds) {
  for (volatile long i = 0; i < *(long *)rounds * 100000; i++) {
  }
  done = 1;
  return NULL;
}

__attribute__((noinline)) static void wait_in_loop(void) {
  while (!done) {
  }
}

int main(int argc, char **argv) {
  long rounds = argc > 2 ? atol(argv[2]) : 1000;
  pthread_t thread;
  if (pthread_create(&thread, NULL, compute, &rounds))
    return 1;
  if (argc > 1 && !strcmp(argv[1], "spin"))
    wait_in_loop();
  return pthread_join(thread, NULL);
}
