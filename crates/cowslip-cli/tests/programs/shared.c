/* Touches 2,048 pages of each kind of shared memory: half of them first, the rest by a child after those of its
 * parent, and then again those of the child. Maps memory of a file over and over. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 2048, HALF = PAGES / 2 };

static void touch(volatile char *memory, int from, int pages)
{
	for (int page = from; page < from + pages; page++)
		memory[page * PAGE] = 1;
}

static void use(char *memory)
{
	int status;
	pid_t child;

	if (memory == MAP_FAILED || madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE))
		exit(1);
	touch(memory, 0, HALF);
	child = fork();
	if (child == 0) {
		touch(memory, 0, PAGES);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
		exit(1);
	touch(memory, HALF, HALF);
}

static char *map(int file)
{
	if (file >= 0 && ftruncate(file, PAGES * PAGE))
		exit(1);
	return mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
}

int main(void)
{
	char name[64];
	int file, segment;

	use(map(-1));
	use(map(memfd_create("known", 0)));
	segment = shmget(IPC_PRIVATE, PAGES * PAGE, 0600);
	if (segment < 0)
		return 1;
	char *attached = shmat(segment, NULL, 0);
	shmctl(segment, IPC_RMID, NULL);
	use(attached);
	snprintf(name, sizeof name, "/cowslip-known-%d", getpid());
	file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	shm_unlink(name);
	if (file < 0)
		return 1;
	use(map(file));
	for (int turn = 0; turn < 20; turn++) {
		int again = memfd_create("again", 0);
		char *memory = map(again);

		close(again);
		if (memory == MAP_FAILED || madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE))
			return 1;
		touch(memory, 0, 100);
		munmap(memory, PAGES * PAGE);
	}
	return 0;
}
