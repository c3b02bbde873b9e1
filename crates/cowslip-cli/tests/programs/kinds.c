/* Takes a known number of page faults of each kind: 8 MiB of base pages, from the top down; a part of
 * them given back and touched again; a fork, after which parent and child write to some of them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 2048, GIVEN_BACK = 1000, BY_PARENT = 500, BY_CHILD = 300 };

static void touch(volatile char *memory, int from, int pages)
{
	for (int page = from + pages - 1; page >= from; page--)
		memory[page * PAGE] = 1;
}

int main(void)
{
	char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE))
		return 1;
	touch(memory, 0, PAGES);
	if (madvise(memory, GIVEN_BACK * PAGE, MADV_DONTNEED))
		return 1;
	touch(memory, 0, GIVEN_BACK);
	pid_t child = fork();
	if (child < 0)
		return 1;
	touch(memory, 0, child ? BY_PARENT : BY_CHILD);
	if (child == 0)
		_exit(0);
	int status;
	return waitpid(child, &status, 0) != child || status != 0;
}
