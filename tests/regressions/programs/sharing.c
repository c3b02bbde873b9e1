// Two threads that count, each in a cache line of its own or both in one: sharing apart|beside ROUNDS.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(128) atomic_long counters[32];
static long rounds;

__attribute__((noinline)) static void count(atomic_long *counter) {
  for (long i = 0; i < rounds * 1000; i++)
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static void *run(void *counter) {
  count(counter);
  return NULL;
}

int main(int argc, char **argv) {
  int other = argc > 1 && !strcmp(argv[1], "beside") ? 1 : 16;
  rounds = argc > 2 ? atol(argv[2]) : 10000;
  pthread_t thread;
  if (pthread_create(&thread, NULL, run, &counters[other]))
    return 1;
  count(&counters[0]);
  return pthread_join(thread, NULL);
}
