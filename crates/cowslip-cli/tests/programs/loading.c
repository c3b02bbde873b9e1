/* Forks by a system call while another thread is inside the dynamic linker, and in the child calls what needs none of it:
 * nobody gives the linker's lock back there. The argument is a module, made of this file with -DMODULE, whose beginning
 * takes a while. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BEGUN = 100, END = 101 };

#ifdef MODULE
__attribute__((constructor)) static void begin(void)
{
	char byte = 0;

	if (write(BEGUN, &byte, 1) != 1 || read(END, &byte, 1) != 1)
		abort();
}
#else
static void *load(void *path) { return dlopen(path, RTLD_NOW); }

/* What memory is asked about or given to by an address, as a file and for other processes. */
static int calls(char *memory)
{
	int file = open("/proc/self/mem", O_RDWR);
	sem_t *shared = (sem_t *)(memory + (7 << 20));

	return file >= 0 && pwrite(file, "2", 1, (intptr_t)memory) == 1 && *memory == '2' &&
	       lseek(file, (intptr_t)memory + 1, SEEK_SET) == (intptr_t)memory + 1 && write(file, "3", 1) == 1 &&
	       memory[1] == '3' && !sem_init(shared, 1, 1) && !sem_wait(shared);
}

/* Whether a child of `born`'s has the memory. */
static int forks(pid_t (*born)(void), const char *memory)
{
	int status;
	pid_t child = born();

	if (!child)
		_exit(memory[5 << 20] != 1);
	return waitpid(child, &status, 0) == child && !status;
}

int main(int count, char **words)
{
	int begun[2], end[2], status;
	char *memory = malloc(64 << 20), byte = 0;
	pthread_t thread;

	memset(memory, 1, 64 << 20);
	if (count < 2 || pipe(begun) || pipe(end) || dup2(begun[1], BEGUN) < 0 || dup2(end[0], END) < 0)
		return 2;
	if (pthread_create(&thread, NULL, load, words[1]) || read(begun[0], &byte, 1) != 1)
		return 2;
	pid_t child = syscall(SYS_fork);
	if (!child) {
		alarm(10);
		_exit(!forks(_Fork, memory) << 0 | !forks(fork, memory) << 1 | !calls(memory) << 2);
	}
	if (waitpid(child, &status, 0) != child || write(end[1], &byte, 1) != 1)
		return 2;
	pthread_join(thread, NULL);
	printf("%x\n", status);
	return 0;
}
#endif
