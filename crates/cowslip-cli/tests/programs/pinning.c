/* Reads a file of a file system whose server answers late and has the kernel write into the reader's pages (FUSE with
 * direct_io), into large memory that is frozen before a read and thawed during it. Argument: a folder. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define BLOCK 65536ul
#define BLOCKS 64

static int arrived[2], go[2];

static void answer(int fuse, const struct fuse_in_header *in, int error, const void *body, size_t len) {
  struct fuse_out_header out = {.len = sizeof out + len, .error = error, .unique = in->unique};
  struct iovec parts[] = {{&out, sizeof out}, {(void *)body, len}};
  if (writev(fuse, parts, 2) < 0 && errno != ENOENT) _exit(80);
}

static struct fuse_attr attributes(unsigned long node) {
  struct fuse_attr attr = {.ino = node, .nlink = 1, .size = node == 1 ? 0 : BLOCKS * BLOCK, .blksize = 4096};
  attr.mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
  return attr;
}

/* Block b holds the byte b + 1 everywhere. Each read is announced, and answered when it is told to. */
static void serve(int fuse) {
  static char request[256 * 1024], block[BLOCK];
  for (;;) {
    ssize_t got = read(fuse, request, sizeof request);
    if (got < 0 && (errno == EINTR || errno == ENOENT)) continue;
    if (got <= 0) _exit(0);
    struct fuse_in_header *in = (void *)request;
    void *body = in + 1;
    if (in->opcode == FUSE_INIT) {
      struct fuse_init_in *asked = body;
      struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = asked->minor, .max_write = 65536};
      init.max_readahead = asked->max_readahead;
      answer(fuse, in, 0, &init, sizeof init);
    } else if (in->opcode == FUSE_LOOKUP) {
      struct fuse_entry_out entry = {.nodeid = 2, .attr_valid = 60, .entry_valid = 60, .attr = attributes(2)};
      answer(fuse, in, 0, &entry, sizeof entry);
    } else if (in->opcode == FUSE_GETATTR) {
      struct fuse_attr_out attr = {.attr_valid = 60, .attr = attributes(in->nodeid)};
      answer(fuse, in, 0, &attr, sizeof attr);
    } else if (in->opcode == FUSE_OPEN) {
      struct fuse_open_out opened = {.open_flags = FOPEN_DIRECT_IO};
      answer(fuse, in, 0, &opened, sizeof opened);
    } else if (in->opcode == FUSE_READ) {
      struct fuse_read_in *wanted = body;
      char byte = 0;
      if (write(arrived[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1) _exit(81);
      memset(block, 1 + wanted->offset / BLOCK, BLOCK);
      answer(fuse, in, 0, block, wanted->size < BLOCK ? wanted->size : BLOCK);
    } else if (in->opcode == FUSE_RELEASE) {
      answer(fuse, in, 0, NULL, 0);
    } else if (in->opcode != FUSE_FORGET && in->opcode != FUSE_BATCH_FORGET && in->opcode != FUSE_INTERRUPT) {
      answer(fuse, in, -ENOSYS, NULL, 0);
    }
  }
}

struct wanted {
  int fd, kind, block;
  char *to;
};

static void *reads(void *argument) {
  struct wanted *it = argument;
  struct iovec parts[] = {{it->to, BLOCK / 2}, {it->to + BLOCK / 2, BLOCK / 2}};
  long at = it->block * BLOCK;
  long got = it->kind == 0   ? pread(it->fd, it->to, BLOCK, at)
             : it->kind == 1 ? preadv(it->fd, parts, 2, at)
                             : (lseek(it->fd, at, SEEK_SET), read(it->fd, it->to, BLOCK));
  return (void *)(got == (long)BLOCK ? 0l : 1l);
}

static void forks(int times) {
  while (times--) {
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    waitpid(pid, NULL, 0);
    usleep(30000);
  }
}

int main(int count, char **arguments) {
  char file[512], options[128];
  if (count < 2 || pipe(arrived) || pipe(go)) return 90;
  if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
    printf("SKIPPED: a mount namespace: %s\n", strerrorname_np(errno));
    return 0;
  }
  mkdir(arguments[1], 0700);
  int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
  if (fuse < 0 || mount("late", arguments[1], "fuse.late", 0, options)) {
    printf("SKIPPED: FUSE: %s\n", strerrorname_np(errno));
    return 0;
  }
  pid_t server = fork();
  if (server == 0) serve(fuse);
  close(fuse);
  char *m = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) return 91;
  memset(m, 99, 64 * MIB);
  snprintf(file, sizeof file, "%s/file", arguments[1]);
  /* Once it was told that there is no such thing, the kernel asks for no flush when children close the file. */
  close(open(file, O_RDONLY));
  int fd = open(file, O_RDONLY);
  if (fd < 0) return 92;
  int wrong = 0;
  for (int round = 0; round < 9; round++) {
    struct wanted it = {fd, round % 3, round * 5 % BLOCKS, m + (2 + 4 * round) * MIB + 4096};
    int end[2];
    char byte = 0;
    if (pipe(end)) return 93;
    pid_t child = fork();
    if (child == 0) {
      close(end[1]);
      _exit(read(end[0], &byte, 1) != 0);
    }
    pthread_t reader;
    if (pthread_create(&reader, NULL, reads, &it) || read(arrived[0], &byte, 1) != 1) return 94;
    close(end[0]);
    close(end[1]);
    waitpid(child, NULL, 0);
    forks(2);
    void *failed;
    if (write(go[1], &byte, 1) != 1 || pthread_join(reader, &failed)) return 95;
    int bad = failed != NULL;
    for (size_t i = 0; i < BLOCK; i++) bad |= it.to[i] != (char)(1 + it.block);
    wrong += bad;
  }
  close(fd);
  umount2(arguments[1], MNT_DETACH);
  waitpid(server, NULL, 0);
  printf("%d reads wrong\n", wrong);
  return 0;
}
