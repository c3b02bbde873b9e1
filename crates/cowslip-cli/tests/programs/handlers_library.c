/* A library that keeps its lock through forks, as from its constructor on, and maps memory under it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void prepare(void) { pthread_mutex_lock(&lock); }
static void release(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void begin(void) { pthread_atfork(prepare, release, release); }

void library_works(void) {
  pthread_mutex_lock(&lock);
  char *m = mmap(NULL, 256 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  m[0] = 1;
  void *some = malloc(400000);
  memset(some, 1, 400000);
  free(some);
  munmap(m, 256 << 10);
  pthread_mutex_unlock(&lock);
}
