// Threads one after the other, each with a buffer on its stack: stacks KIB THREADS.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static size_t bytes;

static void *use(void *unused) {
  (void)unused;
  volatile char *buffer = __builtin_alloca(bytes);
  memset((char *)buffer, 1, bytes);
  return (void *)(size_t)buffer[bytes / 2];
}

int main(int argc, char **argv) {
  bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 64) << 10;
  int threads = argc > 2 ? atoi(argv[2]) : 200;
  for (int i = 0; i < threads; i++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, use, NULL) || pthread_join(thread, NULL))
      return 1;
  }
  return 0;
}
