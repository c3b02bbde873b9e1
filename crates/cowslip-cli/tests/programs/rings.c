/* Reads and writes through a ring with buffers that were registered, and through AIO, before and after forks, and prints
 * what came of it. Natively and under Cowslip it has to print the same. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PIECE (64ul << 10)

static int ring;
static char *queue;
static struct io_uring_sqe *entries;
static struct io_uring_params parameters;
static int file;

static int set_up(void) {
  ring = syscall(SYS_io_uring_setup, 8, &parameters);
  if (ring < 0) return -1;
  size_t len = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
  size_t other = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
  queue = mmap(NULL, len > other ? len : other, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
  entries = mmap(NULL, parameters.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
  return queue == MAP_FAILED || entries == MAP_FAILED ? -1 : 0;
}

static int submit(int operation, char *buffer) {
  unsigned *tail = (unsigned *)(queue + parameters.sq_off.tail), *array = (unsigned *)(queue + parameters.sq_off.array);
  unsigned *head = (unsigned *)(queue + parameters.cq_off.head);
  unsigned place = *tail & *(unsigned *)(queue + parameters.sq_off.ring_mask);
  entries[place] = (struct io_uring_sqe){.opcode = operation, .fd = file, .addr = (unsigned long)buffer, .len = PIECE};
  array[place] = place;
  __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
  if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0) return -errno;
  struct io_uring_cqe *done = (struct io_uring_cqe *)(queue + parameters.cq_off.cqes);
  int answer = done[*head & *(unsigned *)(queue + parameters.cq_off.ring_mask)].res;
  __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
  return answer;
}

static size_t other_than(const char *m, char byte) {
  size_t bad = 0;
  for (size_t i = 0; i < PIECE; i++) bad += m[i] != byte;
  return bad;
}

static void put_in_file(char byte) {
  char content[PIECE];
  memset(content, byte, PIECE);
  if (pwrite(file, content, PIECE, 0) != PIECE) exit(97);
}

static size_t file_other_than(char byte) {
  char content[PIECE];
  if (pread(file, content, PIECE, 0) != PIECE) exit(97);
  return other_than(content, byte);
}

/* What a child sees that goes on when it is told to. */
static pid_t child(const char *m, char byte, int *leash) {
  int ends[2];
  if (pipe(ends)) exit(97);
  pid_t pid = fork();
  if (pid == 0) {
    char end;
    close(ends[1]);
    ssize_t got = read(ends[0], &end, 1);
    _exit(got == 0 && other_than(m, byte) == 0 ? 0 : 1);
  }
  close(ends[0]);
  *leash = ends[1];
  return pid;
}

static void through_a_ring(char *m) {
  struct iovec buffer = {m, PIECE};
  memset(m, 1, PIECE);
  printf("registered %ld\n", syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1));
  int leash, status;
  pid_t pid = child(m, 1, &leash);
  memset(m, 2, PIECE);
  int answer = submit(IORING_OP_WRITE_FIXED, m);
  printf("written %d, wrong %zu\n", answer, file_other_than(2));
  put_in_file(3);
  answer = submit(IORING_OP_READ_FIXED, m);
  printf("read %d, wrong %zu\n", answer, other_than(m, 3));
  put_in_file(4);
  answer = submit(IORING_OP_READ, m + 4 * MIB);
  printf("read elsewhere %d, wrong %zu\n", answer, other_than(m + 4 * MIB, 4));
  close(leash);
  waitpid(pid, &status, 0);
  printf("child %d\n", status);
  char *later = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pid = child(later, 0, &leash);
  answer = submit(IORING_OP_READ, later);
  printf("read later %d, wrong %zu\n", answer, other_than(later, 4));
  close(leash);
  waitpid(pid, &status, 0);
  printf("child %d\n", status);
}

static int by_aio(char *m) {
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, 4, &context)) return -1;
  struct iovec half = {m + 2 * MIB, PIECE}, other = {m + 6 * MIB, PIECE};
  struct iocb requests[4] = {
      {.aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (unsigned long)m, .aio_nbytes = PIECE},
      {.aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PREADV, .aio_buf = (unsigned long)&half, .aio_nbytes = 1},
      {.aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_buf = (unsigned long)m + 4 * MIB, .aio_nbytes = PIECE},
      {.aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PWRITEV, .aio_buf = (unsigned long)&other, .aio_nbytes = 1}};
  struct iocb *list[] = {&requests[0], &requests[1], &requests[2], &requests[3]};
  put_in_file(5);
  int leash, status;
  memset(m, 1, PIECE);
  pid_t pid = child(m, 1, &leash);
  printf("submitted %ld\n", syscall(SYS_io_submit, context, 2, list));
  struct io_event events[2];
  long got = 0;
  while (got < 2) got += syscall(SYS_io_getevents, context, 1, 2 - got, events + got, NULL);
  printf("read %lld %lld, wrong %zu %zu\n", (long long)events[0].res, (long long)events[1].res, other_than(m, 5), other_than(m + 2 * MIB, 5));
  close(leash);
  waitpid(pid, &status, 0);
  printf("child %d\n", status);
  memset(m + 4 * MIB, 6, PIECE);
  memset(m + 6 * MIB, 6, PIECE);
  printf("submitted %ld\n", syscall(SYS_io_submit, context, 2, list + 2));
  madvise(m + 4 * MIB, PIECE, MADV_DONTNEED);
  munmap(m + 6 * MIB, PIECE);
  for (got = 0; got < 2;) got += syscall(SYS_io_getevents, context, 1, 2 - got, events + got, NULL);
  printf("written %lld %lld, wrong %zu\n", (long long)events[0].res, (long long)events[1].res, file_other_than(6));
  return 0;
}

int main(int count, char **words) {
  file = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
  put_in_file(0);
  char *m = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  m = (char *)(((size_t)m + 2 * MIB - 1) & ~(2 * MIB - 1));
  memset(m, 9, 32 * MIB);
  int is_late = strcmp(words[2], "late") == 0, leash = -1, status;
  pid_t pid = is_late ? child(m, 9, &leash) : 0;
  int made = strcmp(words[2], "aio") == 0 ? by_aio(m) : set_up();
  if (made) {
    printf("SKIPPED: %s\n", strerrorname_np(errno));
    return 0;
  }
  if (queue) through_a_ring(m);
  if (is_late) {
    close(leash);
    waitpid(pid, &status, 0);
    printf("the first child %d\n", status);
  }
  return count == 3 ? 0 : 2;
}
