/* Reads and writes memory that is not accessible to it as a file, in each way that there is, and writes
 * other memory as another process would. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CHUNK = 2 << 20, WAYS = 13 };

/* A process is also named by any of its threads. */
static void *write_by_thread(void *place)
{
	struct iovec word = { "poked", 6 }, target = { place, 6 };

	return (void *)process_vm_writev(gettid(), &word, 1, &target, 1, 0);
}

static long each(int way, int file, char *place)
{
	struct iovec word = { "poked", 6 }, target = { place, 6 };
	off_t at = (intptr_t)place;
	pthread_t thread;
	void *did;

	switch (way) {
	case 0: return pwrite(file, "poked", 6, at);
	case 1: return pwritev(file, &word, 1, at);
	case 2: return pwritev2(file, &word, 1, at, 0);
	case 3: return lseek(file, at, SEEK_SET) == at ? write(file, "poked", 6) : -1;
	case 4: return syscall(SYS_pwrite64, file, "poked", 6L, at);
	case 5: return syscall(SYS_pwritev, file, &word, 1L, at, 0L);
	case 6: return syscall(SYS_pwritev2, file, &word, 1L, at, 0L, 0L);
	case 7: return syscall(SYS_lseek, file, at, SEEK_SET) == at ? write(file, "poked", 6) : -1;
	case 8: return syscall(SYS_pread64, file, (char[6]){ 0 }, 6L, at);
	case 9: word.iov_base = (char[6]){ 0 }; return syscall(SYS_preadv, file, &word, 1L, at, 0L);
	case 10: return process_vm_writev(getpid(), &word, 1, &target, 1, 0);
	case 11: return pthread_create(&thread, NULL, write_by_thread, place) || pthread_join(thread, &did) ? -1 : (long)did;
	default: return syscall(SYS_process_vm_writev, getpid(), &word, 1L, &target, 1L, 0L);
	}
}

int main(void)
{
	int file = open("/proc/self/mem", O_RDWR);
	char *memory = malloc((WAYS + 2) * CHUNK);
	char *first = (char *)(((intptr_t)memory + CHUNK - 1) & -(intptr_t)CHUNK);

	memset(memory, 1, (WAYS + 2) * CHUNK);
	for (int way = 0; way < WAYS; way++) {
		char *place = first + way * CHUNK;
		int protection = way < 8 ? PROT_READ : way < 10 ? PROT_NONE : PROT_READ | PROT_WRITE;

		if (mprotect(place, 4096, protection))
			return 2;
		long did = each(way, file, place);
		mprotect(place, 4096, PROT_READ | PROT_WRITE);
		printf("%d: %ld %s\n", way, did, way < 8 || way >= 10 ? place : "");
	}
	return 0;
}
