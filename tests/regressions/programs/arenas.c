// Four threads that allocate and free: arenas TIMES. What MALLOC_ARENA_MAX says matters.
#include <pthread.h>
#include <stdlib.h>

static int times;

static void *churn(void *unused) {
  void *blocks[64] = {0};
  unsigned random = (unsigned)(size_t)&blocks;
  for (int i = 0; i < times; i++) {
    random = random * 1664525u + 1013904223u;
    unsigned at = random >> 26;
    free(blocks[at]);
    blocks[at] = malloc(2048 + (random >> 16) % 8192);
    *(volatile char *)blocks[at] = 1;
  }
  for (int i = 0; i < 64; i++)
    free(blocks[i]);
  return unused;
}

int main(int argc, char **argv) {
  times = argc > 1 ? atoi(argv[1]) : 500000;
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    if (pthread_create(&threads[i], NULL, churn, NULL))
      return 1;
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  return 0;
}
