// Two threads that compute with a lock held, each with its own or both with one: locks own|one TIMES.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t locks[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static int times;

static void *work(void *lock) {
  unsigned long sum = 1;
  for (int i = 0; i < times; i++) {
    pthread_mutex_lock(lock);
    for (int j = 0; j < 200000; j++)
      sum = sum * 6364136223846793005u + 1442695040888963407u;
    pthread_mutex_unlock(lock);
  }
  return (void *)sum;
}

int main(int argc, char **argv) {
  int is_one = argc > 1 && !strcmp(argv[1], "one");
  times = argc > 2 ? atoi(argv[2]) : 1000;
  pthread_t threads[2];
  for (int i = 0; i < 2; i++)
    if (pthread_create(&threads[i], NULL, work, &locks[is_one ? 0 : i]))
      return 1;
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  return 0;
}
