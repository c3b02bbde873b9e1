/* Forks, writes to all of its memory while the child reads it, and waits until it is on huge pages again. Prints "thawed",
 * or "no arena" where its memory is no file's. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE (64 << 20)
#define PATIENCE 60

/* Of the mapping that has this address, a field of smaps in KiB. */
static long field(const char *address, const char *name)
{
	FILE *smaps = fopen("/proc/self/smaps", "r");
	unsigned long start, end;
	char line[512];
	int inside = 0;
	long sum = 0, kib;

	while (fgets(line, sizeof line, smaps)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start < (unsigned long)address + SIZE && end > (unsigned long)address;
		else if (inside && !strncmp(line, name, strlen(name)) && sscanf(line + strlen(name), " %ld", &kib) == 1)
			sum += kib;
	}
	fclose(smaps);
	return sum;
}

int main(void)
{
	char *memory = malloc(SIZE), byte;
	time_t end = time(NULL) + PATIENCE;
	int go[2], status;
	pid_t child;

	memset(memory, 1, SIZE);
	if (!field(memory, "ShmemPmdMapped:")) {
		puts("no arena");
		return 0;
	}
	if (pipe(go) || (child = fork()) < 0)
		return 2;
	if (!child) {
		close(go[1]);
		if (read(go[0], &byte, 1) != 1)
			_exit(1);
		for (long at = 0; at < SIZE; at += 4096)
			if (memory[at] != 1)
				_exit(1);
		_exit(0);
	}
	for (long at = 0; at < SIZE; at += 4096)
		memory[at] = 2;
	if (write(go[1], "g", 1) != 1 || waitpid(child, &status, 0) != child || status)
		return 3;
	while (field(memory, "ShmemPmdMapped:") < (SIZE - (4 << 20)) >> 10 || field(memory, "Anonymous:"))
		if (time(NULL) > end)
			return 4;
	for (long at = 0; at < SIZE; at += 4096)
		if (memory[at] != 2)
			return 5;
	puts("thawed");
	return 0;
}
