/* Threads that touch base pages of their own, again and again: THREADS PAGES ROUNDS PERIOD_NS. A PERIOD of 0
 * is as fast as it goes. Prints how many faults there were, and for how many ns they were made. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static long pages, rounds, period_ns;
static pthread_barrier_t start;

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void *touch(void *ns)
{
	size_t bytes = pages * 4096;
	char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || madvise(at, bytes, MADV_NOHUGEPAGE))
		exit(1);
	for (long i = 0; i < pages; i++) /* the machine gives its memory */
		at[i * 4096] = 1;
	pthread_barrier_wait(&start);
	long began = now(), due = began, gone = 0;
	for (long round = 0; round < rounds; round++) {
		long before = now();
		if (madvise(at, bytes, MADV_DONTNEED))
			exit(1);
		gone += now() - before;
		for (long i = 0; i < pages; i++) {
			if (period_ns) {
				due += period_ns;
				while (now() < due)
					;
			}
			at[i * 4096] = 1;
		}
	}
	*(long *)ns = now() - began - (period_ns ? 0 : gone);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	long threads = atol(argv[1]), longest = 0;
	pages = atol(argv[2]), rounds = atol(argv[3]), period_ns = atol(argv[4]);
	pthread_t *all = calloc(threads, sizeof *all);
	long *ns = calloc(threads, sizeof *ns);
	pthread_barrier_init(&start, 0, threads);
	for (long i = 0; i < threads; i++)
		if (pthread_create(&all[i], 0, touch, &ns[i]))
			return 1;
	for (long i = 0; i < threads; i++) {
		pthread_join(all[i], 0);
		if (ns[i] > longest)
			longest = ns[i];
	}
	printf("%ld %ld\n", threads * pages * rounds, longest);
	return 0;
}
