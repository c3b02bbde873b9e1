/* A program and a module that hand each other memory, and a module that forks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static void *find(void *module, const char *name)
{
	void *found = dlsym(module, name);

	if (!found) {
		puts(dlerror());
		exit(2);
	}
	return found;
}

int main(int count, char **words)
{
	const char *how = count > 1 ? words[1] : "plain";
	int is_apart = !strcmp(how, "namespace");
	char *before = malloc(64 * MIB);
	void *module;

	memset(before, 1, 64 * MIB);
	if (is_apart)
		module = dlmopen(LM_ID_NEWLM, "./module.so", RTLD_NOW);
	else
		module = dlopen("./module.so", RTLD_NOW | (strcmp(how, "deep") ? 0 : RTLD_DEEPBIND));
	if (!module) {
		puts(dlerror());
		return 2;
	}
	void *(*their_malloc)(size_t) = find(module, "module_malloc");
	void (*their_free)(void *) = find(module, "module_free");
	pid_t (*their_fork)(void) = find(module, "module_fork");
	/* In a namespace of its own it has a heap of its own. */
	for (size_t size = 1; !is_apart && size < 8 * MIB; size *= 3) {
		their_free(malloc(size));
		free(their_malloc(size));
	}
	char *after = malloc(64 * MIB);
	int status;

	memset(after, 2, 64 * MIB);
	pid_t child = their_fork();
	if (!child)
		_exit(before[63 * MIB] != 1 || after[63 * MIB] != 2);
	before[63 * MIB] = 3;
	if (waitpid(child, &status, 0) != child || status) {
		printf("the child ended with %x\n", status);
		return 1;
	}
	puts("ok");
	return 0;
}
