/* Programs that confine themselves after their first fork, and fork again: each mode checks one thing and exits with 0, or
 * says what is wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)

static void fail(const char *what)
{
	fprintf(stderr, "%s (%s)\n", what, strerror(errno));
	exit(1);
}

static void nap(long ms)
{
	struct timespec time = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&time, NULL);
}

static unsigned char *fill(unsigned char value)
{
	unsigned char *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	return memset(memory, value, 8 * MIB);
}

/* A child that sees the content, and changes it for itself. A fork needs no descriptor, natively. */
static void fork_and_compare(unsigned char *memory)
{
	unsigned char before = memory[5 * MIB];
	pid_t child = fork();
	int status;

	if (child < 0)
		fail("fork");
	if (!child) {
		int right = memory[5 * MIB] == before;

		memory[5 * MIB] = 0;
		_exit(right ? 0 : 1);
	}
	memory[5 * MIB]++;
	if (waitpid(child, &status, 0) != child || status)
		fail("the child saw something else");
	if (memory[5 * MIB] != (unsigned char)(before + 1))
		fail("a write was lost");
}

static void several_children(void)
{
	for (int round = 0; round < 3; round++) {
		fork_and_compare(fill(round + 1));
		nap(60);
	}
}

static void limit_files(rlim_t most)
{
	struct rlimit limit = {most, most};

	if (setrlimit(RLIMIT_NOFILE, &limit))
		fail("setrlimit");
}

/* For every thread: the call fails with EPERM. */
static void refuse(unsigned int number)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {4, code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter))
		fail("seccomp");
}

static unsigned int number_of(const char *call)
{
	static const struct {
		const char *name;
		unsigned int number;
	} calls[] = {
		{"ppoll", SYS_ppoll},
		{"pselect6", SYS_pselect6},
		{"clock_nanosleep", SYS_clock_nanosleep},
		{"read", SYS_read},
		{"readv", SYS_readv},
	};

	for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
		if (!strcmp(call, calls[i].name))
			return calls[i].number;
	fail(call);
	return 0;
}

static double used_s(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return used.tv_sec + used.tv_nsec / 1e9;
}

static void rests(void)
{
	double before = used_s();

	nap(400);
	if (used_s() - before > 0.2)
		fail("something spins");
}

static int end_at_once(void *unused)
{
	(void)unused;
	_exit(0);
}

static void share_descriptors(void)
{
	static char stack[1 << 16];
	pid_t child = clone(end_at_once, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL);

	if (child < 0 || waitpid(child, NULL, 0) != child)
		fail("clone");
	rests();
	several_children();
	rests();
}

static void many_children(void)
{
	enum { COUNT = 120 };
	pid_t children[COUNT];
	int open_files = 0;

	fill(1);
	limit_files(128);
	for (int i = 0; i < COUNT; i++) {
		children[i] = fork();
		if (children[i] < 0)
			fail("fork");
		if (!children[i]) {
			pause();
			_exit(0);
		}
		/* Those that are forked at once are not watched. */
		nap(12);
	}
	while (open("/dev/null", O_RDONLY) >= 0)
		open_files++;
	for (int i = 0; i < COUNT; i++) {
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
	}
	if (open_files < 128 - 3 - 12)
		fail("too many descriptors are taken");
}

/* A descriptor of the library's has the lowest free number for a moment. */
static int stays_open(int fd)
{
	for (int look = 0; look < 20; look++) {
		if (fcntl(fd, F_GETFD) < 0)
			return 0;
		nap(5);
	}
	return 1;
}

static void closed(void)
{
	limit_files(80);
	close(0);
	close(1);
	fork_and_compare(fill(1));
	if (stays_open(0) || stays_open(1))
		fail("what the program closed is open");
	if (write(1, "x", 1) >= 0)
		fail("something was written to nowhere");
}

static void affinity(void)
{
	cpu_set_t before, after, all;

	sched_getaffinity(0, sizeof all, &all);
	for (int one = 0; one < 2; one++) {
		before = all;
		if (one) {
			CPU_ZERO(&before);
			CPU_SET(sched_getcpu(), &before);
			sched_setaffinity(0, sizeof before, &before);
		}
		fork_and_compare(fill(1));
		sched_getaffinity(0, sizeof after, &after);
		if (!CPU_EQUAL(&before, &after))
			fail("it runs elsewhere now");
	}
}

static void *set(void *memory)
{
	return memset(memory, 2, 1);
}

/* In a group of its own, whose limit is a file: it may have one task more. */
static void last_task(const char *what, const char *limit)
{
	unsigned char *memory = fill(1);
	int file = open(limit, O_WRONLY), status;

	if (!strcmp(what, "fork")) {
		if (write(file, "2", 1) != 1)
			fail(limit);
		for (int round = 0; round < 3; round++)
			fork_and_compare(memory);
		return;
	}
	fork_and_compare(memory);
	if (write(file, "2", 1) != 1)
		fail(limit);
	if (!strcmp(what, "thread")) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, set, memory) || pthread_join(thread, NULL) || memory[0] != 2)
			fail("the thread");
		return;
	}
	pid_t child = strcmp(what, "_Fork") ? syscall(SYS_fork) : _Fork();

	if (!child)
		_exit(memory[5 * MIB] != 2);
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		fail(what);
}

/* Memory of several mappings. The first child is the init of a new namespace: with it all of them would end. */
static void process_namespace(void)
{
	unsigned char *memory = fill(1);
	pid_t children[3];

	if (mprotect(memory + 2 * MIB, MIB, PROT_READ))
		fail("mprotect");
	fork_and_compare(memory);
	if (unshare(CLONE_NEWPID))
		exit(77);
	for (int i = 0; i < 3; i++) {
		memset(memory + 3 * MIB, i, 5 * MIB);
		children[i] = fork();
		if (children[i] < 0)
			fail("a fork into a new namespace");
		if (!children[i]) {
			nap(i == 0 ? 600000 : 0);
			_exit(memory[5 * MIB] != i);
		}
	}
	for (int i = 2; i >= 0; i--) {
		int status;

		if (i == 0)
			kill(children[i], SIGKILL);
		if (waitpid(children[i], &status, 0) != children[i] || (i && status))
			fail("a child in a new namespace");
	}
}

/* Refused natively as well. */
static void too_large_a_stack(void)
{
	unsigned char *memory = fill(1);
	pthread_attr_t attributes;
	pthread_t thread;

	fork_and_compare(memory);
	pthread_attr_init(&attributes);
	if (pthread_attr_setstacksize(&attributes, (size_t)1 << 46))
		fail("the size of a stack");
	if (pthread_create(&thread, &attributes, set, memory) != EAGAIN)
		fail("a thread with such a stack");
	fork_and_compare(memory);
}

/* The lowest last: a file that is opened next gets its number. */
static void close_each(int first)
{
	for (int fd = 1023; fd >= first; fd--)
		close(fd);
}

/* Calls with numbers that are not open fail as natively. */
static void refused_numbers(void)
{
	errno = 0;
	if (close(500) != -1 || errno != EBADF)
		fail("close of a free number");
	errno = 0;
	if (dup2(500, 501) != -1 || errno != EBADF)
		fail("dup2 of a free number");
	errno = 0;
	if (dup3(0, 501, 1 << 30) != -1 || errno != EINVAL)
		fail("dup3 with a flag that is none");
	errno = 0;
	if (close_range(500, 501, 1u << 30) != -1 || errno != EINVAL)
		fail("close_range with a flag that is none");
}

/* Closes all descriptors while a new service thread opens some of its own, and uses the numbers again at once. */
static void closes_by_number(const char *how)
{
	int tube[2];
	char byte;

	fill(1);
	if (fork() == 0)
		_exit(0);
	wait(NULL);
	refused_numbers();
	for (int round = 0; round < 1500; round++) {
		if (unshare(CLONE_FILES) != 0)
			fail("unshare");
		if (!strcmp(how, "range"))
			close_range(3, ~0u, 0);
		else
			close_each(3);
		if (pipe(tube) != 0 || write(tube[1], "x", 1) != 1 || read(tube[0], &byte, 1) != 1)
			fail("a pipe of the program's is closed");
		if (close(tube[0]) != 0 || close(tube[1]) != 0)
			fail("close");
	}
}

int main(int count, char **words)
{
	const char *mode = count > 1 ? words[1] : "";

	if (!strcmp(mode, "tasks")) {
		last_task(words[2], words[3]);
		return 0;
	}
	if (!strcmp(mode, "namespace")) {
		process_namespace();
		return 0;
	}
	if (!strcmp(mode, "stack")) {
		too_large_a_stack();
		return 0;
	}
	if (!strcmp(mode, "children")) {
		many_children();
		return 0;
	}
	if (!strcmp(mode, "closed")) {
		closed();
		return 0;
	}
	if (!strcmp(mode, "numbers")) {
		closes_by_number(words[2]);
		return 0;
	}
	if (!strcmp(mode, "affinity")) {
		affinity();
		return 0;
	}
	fork_and_compare(fill(1));
	nap(100);
	if (!strcmp(mode, "files")) {
		limit_files(count > 2 ? strtoul(words[2], NULL, 10) : 0);
		nap(50);
		several_children();
		rests();
	} else if (!strcmp(mode, "refuse")) {
		for (int i = 2; i < count; i++)
			refuse(number_of(words[i]));
		nap(50);
		several_children();
		rests();
	} else if (!strcmp(mode, "clone")) {
		share_descriptors();
	} else {
		fail("a mode is missing");
	}
	return 0;
}
