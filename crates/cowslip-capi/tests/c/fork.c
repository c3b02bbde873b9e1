/* Children: by cowslip_fork, and by anybody's fork once an arena is installed. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { COUNT = 1 << 18 };

static int ends_well(pid_t pid)
{
    int status = 0;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(void)
{
    cowslip_arena *arena = arena_of(32 * MIB);
    uint64_t *words = words_of(arena, COUNT * sizeof *words);
    fill(words, COUNT, 5);

    int go[2];
    CHECK(pipe(go) == 0);
    int pid = -1;
    const cowslip_arena *arenas[] = { arena };
    OK(cowslip_fork(arenas, 1, &pid, &why));
    if (pid == 0) {
        char byte;
        _exit(!(read(go[0], &byte, 1) == 1 && holds(words, COUNT, 5)));
    }
    fill(words, COUNT, 6);
    CHECK(write(go[1], "", 1) == 1);
    CHECK(ends_well(pid));

    OK(cowslip_at_fork(arena, &why));
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char byte;
        _exit(!(read(go[0], &byte, 1) == 1 && holds(words, COUNT, 6)));
    }
    fill(words, COUNT, 7);
    CHECK(write(go[1], "", 1) == 1);
    CHECK(ends_well(pid));
    CHECK(holds(words, COUNT, 7));

    FAILS(COWSLIP_USAGE, cowslip_fork(NULL, 1, &pid, &why), "arenas is NULL");
    FAILS(COWSLIP_USAGE, cowslip_fork(arenas, 1, NULL, &why), "pid is NULL");
    arenas[0] = NULL;
    FAILS(COWSLIP_USAGE, cowslip_fork(arenas, 1, &pid, &why), "an arena is NULL");
    FAILS(COWSLIP_USAGE, cowslip_at_fork(NULL, &why), "arena is NULL");
    cowslip_arena_free(arena);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        _exit(0);
    CHECK(ends_well(pid));
    return 0;
}
