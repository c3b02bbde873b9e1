/* Does one of two things that a word tells apart, and prints how many page faults the kernel counted for it,
 * and in all until then: its own and its children's. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20, HUGE = 2 * MIB };

static long faults(void)
{
	struct rusage own, children;

	getrusage(RUSAGE_SELF, &own);
	getrusage(RUSAGE_CHILDREN, &children);
	return own.ru_minflt + own.ru_majflt + children.ru_minflt + children.ru_majflt;
}

/* When what a word tells apart began. */
static long before;

static void fill(volatile char *memory, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += PAGE)
		memory[at] = 1;
}

static char *map(size_t bytes, int flags)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		exit(1);
	return memory;
}

/* Memory on base pages wherever huge ones are for everybody. */
static char *base(size_t bytes)
{
	char *memory = map(bytes, MAP_PRIVATE);

	madvise(memory, bytes, MADV_NOHUGEPAGE);
	return memory;
}

static void use_buffers(int is_kept, int flags)
{
	char *memory = NULL;

	for (int turn = 0; turn < 64; turn++) {
		if (!memory)
			memory = flags == MAP_SHARED ? map(MIB, flags) : base(MIB);
		fill(memory, MIB);
		if (!is_kept) {
			munmap(memory, MIB);
			memory = NULL;
		}
	}
}

static void use_memory(int is_given_back)
{
	char *memory = base(4 * MIB);

	fill(memory, 4 * MIB);
	before = faults();
	for (int turn = 0; turn < 16; turn++) {
		if (is_given_back)
			madvise(memory, 4 * MIB, MADV_DONTNEED);
		fill(memory, 4 * MIB);
	}
}

static void use_huge_pages(int are_asked_for)
{
	for (int turn = 0; turn < 8; turn++) {
		char *memory = map(2 * HUGE, MAP_PRIVATE);

		memory += HUGE - (size_t)memory % HUGE;
		if (are_asked_for)
			madvise(memory, HUGE, MADV_HUGEPAGE);
		fill(memory, HUGE);
	}
}

static void fork_children(int they_write)
{
	char *memory = base(8 * MIB);

	fill(memory, 8 * MIB);
	before = faults();
	for (int child = 0; child < 4; child++) {
		pid_t pid = fork();

		if (pid == 0) {
			if (they_write)
				fill(memory, 8 * MIB);
			_exit(0);
		}
		waitpid(pid, NULL, 0);
	}
}

static long descend(long depth)
{
	volatile char frame[PAGE];

	frame[0] = 1;
	return depth ? descend(depth - 1) + frame[0] : 0;
}

static void grow_heap(int is_given_back)
{
	char *heap = sbrk(0);

	for (int turn = 0; turn < 32; turn++) {
		if (sbrk(0) == heap && sbrk(MIB) != heap)
			exit(1);
		fill(heap, MIB);
		if (is_given_back)
			sbrk(-MIB);
	}
}

static void *on_a_stack(void *unused)
{
	descend(150);
	return unused;
}

static void start_threads(int count)
{
	pthread_t thread;

	pthread_create(&thread, NULL, on_a_stack, NULL);
	pthread_join(thread, NULL);
	before = faults();
	while (count-- > 0) {
		pthread_create(&thread, NULL, on_a_stack, NULL);
		pthread_join(thread, NULL);
	}
}

static void share(size_t bytes)
{
	int memory = memfd_create("pairs", MFD_CLOEXEC);
	void *shared;

	if (memory < 0 || ftruncate(memory, (off_t)bytes))
		exit(1);
	shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	if (shared == MAP_FAILED)
		exit(1);
	fill(shared, bytes);
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "";
	int is_other = argc > 2 && strcmp(argv[2], "other") == 0;
	long during;

	before = faults();
	if (!strcmp(word, "buffers"))
		use_buffers(!is_other, MAP_PRIVATE);
	else if (!strcmp(word, "shared-buffers"))
		use_buffers(!is_other, MAP_SHARED);
	else if (!strcmp(word, "madvise"))
		use_memory(is_other);
	else if (!strcmp(word, "huge"))
		use_huge_pages(!is_other);
	else if (!strcmp(word, "fork"))
		fork_children(is_other);
	else if (!strcmp(word, "stack"))
		descend(is_other ? 1500 : 20);
	else if (!strcmp(word, "heap"))
		grow_heap(is_other);
	else if (!strcmp(word, "threads"))
		start_threads(is_other ? 64 : 0);
	else if (!strcmp(word, "memfd"))
		share(is_other ? 32 * MIB : 4 * MIB);
	else if (!strcmp(word, "more"))
		fill(base(32 * MIB), is_other ? 32 * MIB : 8 * MIB);
	else
		return 2;
	during = faults() - before;
	printf("%ld %ld\n", during, faults());
	return 0;
}
