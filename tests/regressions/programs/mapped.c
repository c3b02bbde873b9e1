// Two threads that fill buffers of 256 KiB, kept or mapped anew each time: mapped keep|anew TIMES.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BYTES = 256 << 10 };

static int anew, times;

static char *map(void) {
  char *buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer == MAP_FAILED)
    abort();
  return buffer;
}

static void *fill(void *unused) {
  char *buffer = map();
  for (int i = 0; i < times; i++) {
    for (int at = 0; at < BYTES; at += 4096)
      buffer[at] = (char)i;
    if (anew) {
      munmap(buffer, BYTES);
      buffer = map();
    }
  }
  return unused;
}

int main(int argc, char **argv) {
  anew = argc > 1 && !strcmp(argv[1], "anew");
  times = argc > 2 ? atoi(argv[2]) : 1000;
  pthread_t threads[2];
  for (int i = 0; i < 2; i++)
    if (pthread_create(&threads[i], NULL, fill, NULL))
      return 1;
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  return 0;
}
