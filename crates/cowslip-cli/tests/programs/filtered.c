/* Installs a filter that ends the process at any call that memory, children and output do not take. The argument: `prctl`,
 * `seccomp`, `asked`: by prctl, after a fork that follows the question whether the kernel has
 * filters; or `vfork`: in a process that shares this one's memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, CALLS = 32 };

static const int allowed[] = {
	SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_brk, SYS_futex, SYS_rt_sigprocmask, SYS_clone,
	SYS_wait4, SYS_getpid, SYS_gettid, SYS_set_robust_list, SYS_rseq, SYS_write, SYS_exit, SYS_exit_group,
};

static void fail(const char *what)
{
	write(2, what, strlen(what));
	_exit(1);
}

static void filter(const char *how)
{
	struct sock_filter code[2 * CALLS + 2];
	unsigned short length = 0;

	code[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
		code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
		code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	struct sock_fprog program = {length, code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		fail("no new privileges\n");
	if (strcmp(how, "seccomp") ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
				   : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
		fail("the filter\n");
}

static void ask(void)
{
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) != -1 || errno != EFAULT)
		fail("no filter by prctl\n");
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) != -1 || errno != EFAULT)
		fail("no filter by seccomp\n");
}

static void fork_and_compare(char *memory)
{
	int status;
	pid_t child = fork();

	if (child < 0)
		fail("fork\n");
	if (!child) {
		char seen = memory[63 * MIB];

		memory[63 * MIB] = 0;
		_exit(seen != 1);
	}
	memory[MIB]++;
	if (wait4(child, &status, 0, NULL) != child || status)
		fail("the child\n");
	if (memory[63 * MIB] != 1)
		fail("a child's write\n");
}

static void filter_another(void)
{
	int status;
	pid_t child = vfork();

	if (!child) {
		filter("prctl");
		_exit(0);
	}
	if (wait4(child, &status, 0, NULL) != child || status)
		fail("the child with a filter\n");
}

int main(int count, char **words)
{
	const char *how = count > 1 ? words[1] : "prctl";
	char *memory = malloc(64 * MIB);

	memset(memory, 1, 64 * MIB);
	if (!strcmp(how, "asked"))
		ask();
	fork_and_compare(memory);
	if (strcmp(how, "vfork"))
		filter(how);
	else
		filter_another();
	fork_and_compare(memory);
	char *more = malloc(32 * MIB);
	memset(more, 2, 32 * MIB);
	more = realloc(more, 80 * MIB);
	char *mapped = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mapped[MIB] = 3;
	if (madvise(mapped, 4 * MIB, MADV_DONTNEED) || mapped[MIB])
		fail("what was dropped\n");
	if (mprotect(mapped, MIB, PROT_NONE) || munmap(mapped, 8 * MIB))
		fail("protect, unmap\n");
	fork_and_compare(memory);
	if (more[31 * MIB] != 2 || memory[MIB] != 4)
		fail("content\n");
	free(more);
	free(memory);
	write(1, "done\n", 5);
	if (!strcmp(how, "vfork"))
		exit(0);
	_exit(0);
}
