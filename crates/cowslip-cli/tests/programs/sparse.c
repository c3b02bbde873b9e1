/* Memory that is used sparsely. Prints how much of it is used, in bytes, waits for a line, and checks what it holds.
 *   sparse touch MIB   a page in each 2 MiB, with three forks
 *   sparse zero MIB    the same, in a block of calloc's
 *   sparse refuse MIB  the same, in memory for which huge pages were refused
 *   sparse give MIB    all of it, then 7 of 10 pages given back in pieces of 8 KiB
 *   sparse both MIB    the same, given back while a child reads
 *   sparse outgrow MIB blocks of 1, 2, 3 ... MiB, filled, each freed when the next one is */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define CHUNK (2ul << 20)
#define CHECK(it) do { if (!(it)) { printf("failed: %s, line %d\n", #it, __LINE__); exit(1); } } while (0)

static void tell(size_t pages) {
	printf("%zu\n", pages * PAGE);
	fflush(stdout);
	getchar();
}

static int is_given(size_t page) {
	return (page / 2 + 1) * 0x9e3779b97f4a7c15ul % 1000 < 700;
}

static void touch(char *memory, size_t bytes) {
	for (size_t i = 0; i < bytes; i += CHUNK)
		memory[i]++;
	for (int round = 0; round < 3; round++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			for (size_t i = 0; i < bytes; i += CHUNK)
				if (memory[i] != round + 1)
					_exit(1);
			_exit(0);
		}
		for (size_t i = 0; i < bytes; i += CHUNK)
			memory[i]++;
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	tell(bytes / CHUNK);
	for (size_t i = 0; i < bytes; i += CHUNK)
		CHECK(memory[i] == 4);
}

static void give(char *memory, size_t bytes, int is_forked) {
	int hold[2];
	CHECK(pipe(hold) == 0);
	for (size_t i = 0; i < bytes; i += PAGE)
		memset(memory + i, 1 + (i / PAGE) % 100, PAGE);
	pid_t child = is_forked ? fork() : -1;
	if (!child) {
		char byte;
		close(hold[1]);
		CHECK(read(hold[0], &byte, 1) == 0);
		for (size_t i = 0; i < bytes; i += PAGE)
			if (memory[i + 7] != (char)(1 + (i / PAGE) % 100))
				_exit(1);
		_exit(0);
	}
	for (size_t page = 0; page < bytes / PAGE; page += 2)
		if (is_given(page))
			CHECK(madvise(memory + page * PAGE, 2 * PAGE, MADV_DONTNEED) == 0);
	close(hold[1]);
	int status = 0;
	CHECK(!is_forked || (waitpid(child, &status, 0) == child && status == 0));
	size_t used = 0;
	for (size_t page = 0; page < bytes / PAGE; page++)
		used += !is_given(page);
	tell(used);
	for (size_t page = 0; page < bytes / PAGE; page++)
		CHECK(memory[page * PAGE + 9] == (is_given(page) ? 0 : (char)(1 + page % 100)));
}

static int outgrow(size_t most) {
	/* From its first large block on the heap is not glibc's. */
	char *block = NULL;
	for (size_t bytes = 1ul << 20; bytes <= most; bytes += 1ul << 20) {
		char *next = malloc(bytes);
		CHECK(next);
		memset(next, 1, bytes);
		free(block);
		block = next;
	}
	tell(most / PAGE);
	free(block);
	return 0;
}

int main(int argc, char **argv) {
	CHECK(argc == 3);
	size_t bytes = strtoul(argv[2], NULL, 10) << 20;
	if (!strcmp(argv[1], "outgrow"))
		return outgrow(bytes);
	char *memory = !strcmp(argv[1], "zero") ? calloc(bytes, 1)
		: mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory && memory != MAP_FAILED);
	if (!strcmp(argv[1], "refuse"))
		CHECK(madvise(memory, bytes, MADV_NOHUGEPAGE) == 0);
	else if (!strcmp(argv[1], "give"))
		CHECK(madvise(memory, bytes, MADV_HUGEPAGE) == 0);
	if (!strcmp(argv[1], "give") || !strcmp(argv[1], "both"))
		give(memory, bytes, argv[1][0] == 'b');
	else
		touch(memory, bytes);
	return 0;
}
