/* Reads a file past the page cache in every way there is, each into 2 MiB of its own, between forks, and prints what it
 * found there. Natively and under Cowslip it has to print the same. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PIECE (64ul << 10)
#define WAYS 12

static int direct;
static const char *path;

static int received(void) {
  int ends[2];
  char byte = 'x';
  union {
    char room[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
  if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) return -1;
  struct cmsghdr *part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(part), &direct, sizeof(int));
  int fd = -1;
  if (sendmsg(ends[0], &message, 0) == 1 && recvmsg(ends[1], &message, 0) == 1) memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
  close(ends[0]);
  close(ends[1]);
  return fd;
}

static ssize_t waited(struct aiocb *request) {
  const struct aiocb *list[] = {request};
  while (aio_error(request) == EINPROGRESS) aio_suspend(list, 1, NULL);
  return aio_return(request);
}

static ssize_t way(int which, char *to) {
  struct iovec halves[2] = {{to, PIECE / 2}, {to + PIECE / 2, PIECE / 2}};
  struct aiocb request = {.aio_fildes = direct, .aio_buf = to, .aio_nbytes = PIECE};
  struct aiocb *list[] = {&request};
  ssize_t got;
  int fd;
  switch (which) {
    case 0: lseek(direct, 0, SEEK_SET); return read(direct, to, PIECE);
    case 1: return pread(direct, to, PIECE, 0);
    case 2: lseek(direct, 0, SEEK_SET); return readv(direct, halves, 2);
    case 3: return preadv(direct, halves, 2, 0);
    case 4: return preadv2(direct, halves, 2, 0, 0);
    case 5: return syscall(SYS_pread64, direct, to, PIECE, 0);
    case 6: return syscall(SYS_preadv, direct, halves, 2, 0, 0);
    case 7: return aio_read(&request) ? -1 : waited(&request);
    case 8: request.aio_lio_opcode = LIO_READ; return lio_listio(LIO_WAIT, list, 1, NULL) ? -1 : aio_return(&request);
    case 9: /* made so afterwards */
      fd = open(path, O_RDONLY);
      fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT);
      got = pread(fd, to, PIECE, 0);
      close(fd);
      return got;
    case 10: fd = received(); got = pread(fd, to, PIECE, 0); close(fd); return got;
    default: fd = dup(direct); got = pread(fd, to, PIECE, 0); close(fd); return got;
  }
}

static size_t wrong(const char *m, size_t len) {
  size_t bad = 0;
  for (size_t i = 0; i < len; i++) bad += m[i] != (char)(i * 7 / 512 + 1);
  return bad;
}

/* What a stream reads by itself, into memory of the program's and into its own. */
static int through_a_stream(void) {
  char *m = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  m = (char *)(((size_t)m + 2 * MIB - 1) & ~(2 * MIB - 1));
  memset(m, 1, 8 * MIB);
  FILE *file = fdopen(direct, "r");
  setvbuf(file, m + 4 * MIB, _IOFBF, 8192);
  pid_t pid = fork();
  if (pid == 0) _exit(m[0] == 1 ? 0 : 1);
  size_t got = fread(m, 1, PIECE, file);
  int status;
  waitpid(pid, &status, 0);
  printf("stream: %zu, wrong %zu, child %d, after it %d\n", got, wrong(m, PIECE), status, m[PIECE]);
  return 0;
}

static int all(int fd) {
  direct = fd;
  char *m = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  m = (char *)(((size_t)m + 2 * MIB - 1) & ~(2 * MIB - 1));
  memset(m, 1, 48 * MIB);
  for (int i = 0; i < WAYS; i++) {
    char *to = m + 2 * MIB * i + PIECE;
    memset(to, 0, PIECE);
    pid_t pid = fork();
    if (pid == 0) _exit(to[0] == 0 && to[PIECE] == 1 ? 0 : 1);
    ssize_t got = way(i, to);
    int status;
    waitpid(pid, &status, 0);
    printf("way %d: %zd, wrong %zu, child %d, around it %d %d\n", i, got, wrong(to, PIECE), status, to[-1], to[PIECE]);
  }
  return 0;
}

int main(int count, char **words) {
  path = words[1];
  /* Once more, with a descriptor from before. */
  int inherited = count > 2 && strcmp(words[2], "pass") == 0;
  int in_stream = count > 2 && strcmp(words[2], "stream") == 0;
  if (count > 2 && !inherited && !in_stream) return all(atoi(words[2]));
  char content[PIECE];
  for (size_t i = 0; i < PIECE; i++) content[i] = (char)(i * 7 / 512 + 1);
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (write(file, content, PIECE) != PIECE) return 97;
  fsync(file);
  close(file);
  direct = inherited ? open(path, O_RDONLY | O_DIRECT) : open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (direct < 0 && errno == EINVAL) {
    puts("SKIPPED: no O_DIRECT here");
    return 0;
  }
  if (inherited) {
    char number[16];
    snprintf(number, sizeof number, "%d", direct);
    execl(words[0], words[0], path, number, NULL);
    return 98;
  }
  return in_stream ? through_a_stream() : all(direct);
}
