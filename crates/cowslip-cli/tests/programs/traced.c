/* Maps and writes 64 MiB twice, and forks after each: in a child that this process traces (ptrace(2)), and then itself.
 * Prints how many threads the traced child had at the end, and that both forks' memory was right. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 64 << 20 };

static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int count = 0;

	if (!tasks)
		return -1;
	for (struct dirent *task; (task = readdir(tasks));)
		count += task->d_name[0] != '.';
	closedir(tasks);
	return count;
}

/* Waits for a process that is traced, and lets it go on from each stop. */
static int end_of(pid_t pid)
{
	int status;

	for (;;) {
		if (waitpid(pid, &status, 0) != pid)
			return -1;
		if (!WIFSTOPPED(status))
			return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
		int signal = WSTOPSIG(status);
		if (ptrace(PTRACE_CONT, pid, NULL, signal == SIGTRAP || signal == SIGSTOP ? 0 : signal))
			return -1;
	}
}

/* 0 if a child finds what was written before its fork. */
static int fork_of_filled(void)
{
	char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return -1;
	memset(memory, 7, LENGTH);
	pid_t child = fork();
	if (child < 0)
		return -1;
	if (!child) {
		_exit(memory[0] != 7 || memory[LENGTH - 1] != 7);
	}
	memset(memory, 8, LENGTH);
	return end_of(child);
}

int main(void)
{
	pid_t child = fork();

	if (child < 0)
		return 1;
	if (!child) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) || raise(SIGSTOP))
			_exit(100);
		int wrong = fork_of_filled();
		_exit(wrong ? 101 : threads());
	}
	printf("traced: %d\n", end_of(child));
	printf("itself: %d\n", fork_of_filled());
	return 0;
}
