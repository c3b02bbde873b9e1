/* Attaches shared segments over large private memory, and to places in it that it gave back. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

static char *fresh(size_t len) {
  char *m = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) exit(90);
  memset(m, 3, len);
  return m;
}

static void *attach(int by_number, int id, void *at, int flags) {
  return by_number ? (void *)syscall(SYS_shmat, id, at, flags) : shmat(id, at, flags);
}

static void share(const char *what, int by_number, char *at, int flags, int given_back) {
  int id = shmget(IPC_PRIVATE, 4 * MIB, IPC_CREAT | 0600);
  char *witness = shmat(id, NULL, 0);
  if (id < 0 || witness == (void *)-1) exit(91);
  /* Not before, or the witness would be put there. */
  if (given_back) munmap(at, 4 * MIB);
  char *segment = attach(by_number, id, at, flags);
  shmctl(id, IPC_RMID, NULL);
  if (segment == (void *)-1) {
    printf("%s: %s\n", what, strerrorname_np(errno));
    shmdt(witness);
    return;
  }
  size_t bad = 0;
  for (int round = 0; round < 3; round++) {
    segment[0] = (char)(10 + round);
    bad += witness[0] != 10 + round;
    pid_t pid = fork();
    if (pid == 0) {
      segment[MIB] = (char)(20 + round);
      _exit(0);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status) exit(92);
    bad += witness[MIB] != 20 + round || segment[MIB] != 20 + round;
    witness[2 * MIB] = (char)(30 + round);
    bad += segment[2 * MIB] != 30 + round;
    usleep(60000);
    segment[3 * MIB] = (char)(40 + round);
    bad += witness[3 * MIB] != 40 + round || witness[0] != 10 + round;
  }
  printf("%s: at its place %d, %zu not shared\n", what, segment == (char *)((unsigned long)at & ~4095ul), bad);
  shmdt(witness);
}

int main(void) {
  char *m = fresh(64 * MIB);
  if (fork() == 0) _exit(0);
  wait(NULL);
  share("over it", 0, m + 8 * MIB, SHM_REMAP, 0);
  share("by number", 1, m + 16 * MIB + 4096, SHM_REMAP, 0);
  share("rounded", 0, m + 24 * MIB + 77, SHM_REMAP | SHM_RND, 0);
  share("in use", 0, m + 32 * MIB, 0, 0);
  share("not aligned", 0, m + 32 * MIB + 1, SHM_REMAP, 0);
  share("given back", 0, m + 40 * MIB, 0, 1);
  munmap(m + 44 * MIB, MIB);
  share("half in use", 1, m + 44 * MIB, 0, 0);
  size_t bad = 0;
  for (size_t i = 0; i < 8 * MIB; i += 4096) bad += m[i] != 3 || m[52 * MIB + i] != 3 || m[32 * MIB + i] != 3;
  printf("%zu wrong beside them\n", bad);
  return 0;
}
