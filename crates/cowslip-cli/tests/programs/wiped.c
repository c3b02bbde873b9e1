/* Has a page empty in children, while a second thread runs, and writes into each child's page at once: prints how many of
 * 200 children found what was written. For the second half of them the page lies elsewhere (mremap(2)). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, CHILDREN = 200 };

static void *sleep_on(void *pipe)
{
	char byte;

	return read(*(int *)pipe, &byte, 1) ? NULL : pipe;
}

int main(void)
{
	char *memory = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *page = memory + 5 * MIB, word[8] = "written";
	int pipes[2], found = 0;
	pthread_t thread;

	memset(memory, 1, 64 * MIB);
	if (pipe(pipes) || pthread_create(&thread, NULL, sleep_on, pipes) || madvise(page, 4096, MADV_WIPEONFORK))
		return 1;
	for (int i = 0; i < CHILDREN; i++) {
		int go[2], status;
		if (i == CHILDREN / 2)
			page = mremap(page, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, memory + 9 * MIB);
		struct iovec from = {word, sizeof word}, to = {page, sizeof word};

		if (page == MAP_FAILED || pipe(go))
			return 1;
		pid_t child = fork();
		if (child < 0)
			return 1;
		if (!child) {
			char byte;

			close(go[1]);
			_exit(read(go[0], &byte, 1) != 1 || memcmp(page, word, sizeof word) || page[sizeof word] != 0);
		}
		if (process_vm_writev(child, &from, 1, &to, 1, 0) != sizeof word || write(go[1], "", 1) != 1)
			return 1;
		if (waitpid(child, &status, 0) != child)
			return 1;
		found += status == 0;
		close(go[0]);
		close(go[1]);
	}
	printf("%d\n", found);
	return 0;
}
