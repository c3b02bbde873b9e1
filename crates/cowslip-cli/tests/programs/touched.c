/* Touches pages as it is told, line by line, and says what the kernel counted for it.
 *
 *   map PAGES          private memory of base pages: its address
 *   huge CHUNKS        private memory aligned to 2 MiB, of huge pages if there are any: its address
 *   write A N STRIDE   writes one byte to each of N pages, the next one STRIDE pages away
 *   read A N STRIDE    reads them
 *   thread A N STRIDE  writes them in a new thread
 *   child A N STRIDE   writes them in a forked child
 *   fill A BYTES       has the kernel write there (read(2))
 *   drop A N           MADV_DONTNEED
 *   unmap A N          munmap
 *   move A N           mremap to somewhere else: its new address
 *   storm N            makes N threads, one after the other, each of which writes to 8 new pages
 *
 * Each touch answers with process, thread and minor faults; storm with the address of all its pages.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, CHUNK = 2 << 20, STORM_PAGES = 8 };

struct job {
	volatile char *at;
	long pages, stride;
	int writes;
};

static long minor_faults(void)
{
	struct rusage used;
	getrusage(RUSAGE_THREAD, &used);
	return used.ru_minflt;
}

static void touch(const struct job *job)
{
	volatile char *at = job->at;
	for (long page = 0; page < job->pages; page++, at += job->stride * PAGE) {
		if (job->writes)
			*at = 1;
		else
			(void)*at;
	}
}

/* Everything that the answer needs is touched before the pages that count. */
static void *tell(void *argument)
{
	struct job nothing = {.pages = 0};
	long before = minor_faults();
	touch(&nothing);
	before = minor_faults();
	touch(argument);
	long faults = minor_faults() - before;
	printf("%d %ld %ld\n", getpid(), (long)syscall(SYS_gettid), faults);
	fflush(stdout);
	return NULL;
}

static char *map(size_t bytes, size_t align)
{
	char *at = mmap(NULL, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		exit(1);
	return align ? (char *)(((uintptr_t)at + align - 1) & ~(align - 1)) : at;
}

static void *raindrop(void *at)
{
	struct job job = {at, STORM_PAGES, 1, 1};
	touch(&job);
	return NULL;
}

static void storm(long threads)
{
	char *at = map(threads * STORM_PAGES * PAGE, 0);
	madvise(at, threads * STORM_PAGES * PAGE, MADV_NOHUGEPAGE);
	for (long number = 0; number < threads; number++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, raindrop, at + number * STORM_PAGES * PAGE))
			exit(1);
		pthread_join(thread, NULL);
	}
	printf("%lu\n", (unsigned long)at);
}

int main(void)
{
	char line[256], word[16];
	while (fgets(line, sizeof line, stdin)) {
		unsigned long a = 0;
		long n = 0, stride = 1;
		if (sscanf(line, "%15s %lu %ld %ld", word, &a, &n, &stride) < 1)
			continue;
		struct job job = {(char *)a, n, stride, strcmp(word, "read") != 0};
		pthread_t thread;
		if (!strcmp(word, "map")) {
			char *at = map(a * PAGE, 0);
			madvise(at, a * PAGE, MADV_NOHUGEPAGE);
			printf("%lu\n", (unsigned long)at);
		} else if (!strcmp(word, "huge")) {
			char *at = map(a * CHUNK, CHUNK);
			madvise(at, a * CHUNK, MADV_HUGEPAGE);
			printf("%lu\n", (unsigned long)at);
		} else if (!strcmp(word, "write") || !strcmp(word, "read")) {
			tell(&job);
		} else if (!strcmp(word, "thread")) {
			if (pthread_create(&thread, NULL, tell, &job))
				exit(1);
			pthread_join(thread, NULL);
		} else if (!strcmp(word, "child")) {
			pid_t child = fork();
			if (!child) {
				tell(&job);
				_exit(0);
			}
			waitpid(child, NULL, 0);
		} else if (!strcmp(word, "fill")) {
			int zeroes = open("/dev/zero", O_RDONLY);
			printf("%ld\n", (long)read(zeroes, (void *)a, n));
			close(zeroes);
		} else if (!strcmp(word, "drop")) {
			printf("%d\n", madvise((void *)a, n * PAGE, MADV_DONTNEED));
		} else if (!strcmp(word, "unmap")) {
			printf("%d\n", munmap((void *)a, n * PAGE));
		} else if (!strcmp(word, "move")) {
			char *to = map(n * PAGE, 0);
			void *at = mremap((void *)a, n * PAGE, n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
			printf("%lu\n", (unsigned long)at);
		} else if (!strcmp(word, "storm")) {
			storm(a);
		}
		fflush(stdout);
	}
	return 0;
}
