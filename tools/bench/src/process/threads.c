/* THREADS threads that count and rest, over MIB of huge pages. Each SIGUSR1 makes the main thread fork once, and print
 * the time that the fork took, in ns. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile long counts[1024];

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void *count(void *at)
{
	for (;;) {
		++*(volatile long *)at;
		usleep(100000); /* most threads of a server wait */
	}
}

int main(int argc, char **argv)
{
	long threads = argc > 2 ? atol(argv[1]) : 0, bytes = argc > 2 ? atol(argv[2]) << 20 : 0;
	char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigset_t signals;
	int signal;
	if (threads < 1 || threads > 1024 || memory == MAP_FAILED)
		return 2;
	madvise(memory, bytes, MADV_HUGEPAGE);
	memset(memory, 1, bytes);
	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &signals, 0);
	for (long i = 1; i < threads; i++) {
		pthread_t thread;
		if (pthread_create(&thread, 0, count, (void *)&counts[i]))
			return 2;
	}
	for (puts("ready"); fflush(stdout) == 0 && sigwait(&signals, &signal) == 0;) {
		long began = now();
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		printf("%ld\n", now() - began);
		waitpid(child, 0, 0);
	}
	return 1;
}
