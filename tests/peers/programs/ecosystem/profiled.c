/* Allocates much, forks, compares in the child while the parent changes all of it, loses a block, prints "ok". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 2000, BYTES = 25000 };

static unsigned char *blocks[BLOCKS];

static int differs(int from)
{
	for (int i = 0; i < BLOCKS; i++)
		for (int at = 0; at < BYTES; at += 997)
			if (blocks[i][at] != (unsigned char)(i + from))
				return 1;
	return 0;
}

int main(void)
{
	char *volatile lost = strdup("lost");
	int status;

	for (int i = 0; i < BLOCKS; i++)
		memset(blocks[i] = malloc(BYTES), i, BYTES);
	pid_t child = fork();
	if (child == 0)
		_exit(differs(0));
	for (int i = 0; i < BLOCKS; i++)
		memset(blocks[i], i + 1, BYTES);
	if (child < 0 || waitpid(child, &status, 0) != child || status || differs(1))
		return 1;
	for (int i = 0; i < BLOCKS; i += 2)
		free(blocks[i]), blocks[i] = calloc(BYTES, 1);
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
	lost = NULL;
	puts("ok");
	return fflush(stdout);
}
