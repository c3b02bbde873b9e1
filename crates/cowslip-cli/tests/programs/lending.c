/* Lends memory to a reader in every way there is, from 2 MiB of its own each, and gives it back before
 * that reads: after a fork, and inherited memory in a child. Prints the bytes that arrived wrong.
 * Natively and under Cowslip it has to print the same. */
#define _GNU_SOURCE
#include <arpa/inet.h>
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
#define PAGE 4096ul

enum { PIPES = 2, WAYS = 9 };

/* An end to write to, and one to read from. */
static void make_socket(int ends[2]) {
  struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof place;
  int door = socket(AF_INET, SOCK_STREAM, 0), yes = 1, large = 4 * MIB, small = PAGE;
  ends[1] = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(door, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
  if (bind(door, (void *)&place, len) || getsockname(door, (void *)&place, &len) || listen(door, 1) ||
      connect(ends[1], (void *)&place, len) || setsockopt(ends[1], SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof yes)) {
    printf("SKIPPED: sends without a copy: %s\n", strerrorname_np(errno));
    exit(0);
  }
  ends[0] = accept(door, NULL, NULL);
  close(door);
}

static ssize_t lend(int way, int to, char *from) {
  struct iovec halves[2] = {{from, PIECE / 2}, {from + PIECE / 2, PIECE / 2}};
  struct mmsghdr message = {.msg_hdr = {.msg_iov = halves, .msg_iovlen = 2}};
  int flags = MSG_ZEROCOPY | MSG_DONTWAIT;
  switch (way) {
    case 0: return vmsplice(to, halves, 2, SPLICE_F_GIFT);
    case 1: return syscall(SYS_vmsplice, to, halves, 2, 0);
    case 2: return send(to, from, PIECE, flags);
    case 3: return sendto(to, from, PIECE, flags, NULL, 0);
    case 4: return sendmsg(to, &message.msg_hdr, flags);
    case 5: return sendmmsg(to, &message, 1, flags) == 1 ? (ssize_t)message.msg_len : -1;
    case 6: return syscall(SYS_sendto, to, from, PIECE, flags, NULL, 0);
    case 7: return syscall(SYS_sendmsg, to, &message.msg_hdr, flags);
    default: return syscall(SYS_sendmmsg, to, &message, 1, flags) == 1 ? (ssize_t)message.msg_len : -1;
  }
}

/* The bytes that differ of those that can be read. */
static size_t wrong(int from, ssize_t len, char value) {
  static char bytes[PIECE];
  size_t bad = 0;
  while (len > 0) {
    ssize_t got = read(from, bytes, sizeof bytes);
    if (got <= 0) return PIECE;
    for (ssize_t i = 0; i < got; i++) bad += bytes[i] != value;
    len -= got;
  }
  return bad;
}

static char *fresh(size_t len, char value) {
  char *m = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) exit(90);
  return memset(m, value, len);
}

static void give_back(int way, char *m) {
  if (way % 3 == 0) munmap(m, PIECE);
  if (way % 3 == 1) madvise(m, PIECE, MADV_DONTNEED);
  if (way % 3 == 2) mmap(m, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

int main(void) {
  char *m = fresh(64 * MIB, 1);
  m = (char *)(((size_t)m + 2 * MIB - 1) & ~(2 * MIB - 1));
  for (int way = 0; way < 2 * WAYS; way++) {
    int ends[2], status, is_in_child = way >= WAYS, sent;
    char *at = m + way * 2 * MIB + PAGE;
    if (way % WAYS < PIPES ? pipe(ends) : (make_socket(ends), 0)) return 91;
    memset(at, 'A', PIECE);
    pid_t pid = fork();
    if (pid == 0) {
      _exit(is_in_child ? lend(way - WAYS, ends[1], at) != PIECE : at[0] != 'A');
    }
    waitpid(pid, &status, 0);
    sent = is_in_child ? 0 : lend(way, ends[1], at);
    if (is_in_child) memset(at, 'C', PIECE);
    else give_back(way, at);
    char *later = fresh(MIB, 'B');
    printf("way %d: child %d, sent %d, wrong %zu\n", way, status, sent, wrong(ends[0], PIECE, 'A'));
    munmap(later, MIB);
    close(ends[0]);
    close(ends[1]);
  }
  return 0;
}
