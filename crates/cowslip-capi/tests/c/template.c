/* Templates: clones here, and in a process that gets one over a socket. */
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { COUNT = 1 << 18 };

static int receive(int socket, const uint64_t *words)
{
    cowslip_template *template_ = NULL;
    cowslip_clone *clone = NULL;
    OK(cowslip_template_receive(socket, &template_, &why));
    OK(cowslip_clone_new(template_, COWSLIP_PLACE_ANYWHERE, &clone, &why));
    uint64_t *mine = cowslip_clone_at(clone, words);
    CHECK(mine != NULL && holds(mine, COUNT, 9));
    fill(mine, COUNT, 1);
    cowslip_clone_free(clone);
    cowslip_template_free(template_);
    return 0;
}

int main(void)
{
    int sockets[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    int place[2];
    CHECK(pipe(place) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        uint64_t *words;
        CHECK(read(place[0], &words, sizeof words) == sizeof words);
        exit(receive(sockets[1], words));
    }
    close(sockets[1]);

    cowslip_arena *arena = arena_of(32 * MIB);
    uint64_t *words = words_of(arena, COUNT * sizeof *words);
    fill(words, COUNT, 9);
    cowslip_frozen *view = NULL;
    OK(cowslip_freeze(arena, 0, &view, &why));
    cowslip_template *template_ = NULL;
    OK(cowslip_template_new(view, &template_, &why));
    CHECK(write(place[1], &words, sizeof words) == sizeof words);
    OK(cowslip_template_send(template_, sockets[0], &why));

    cowslip_clone *clones[3];
    for (int i = 0; i < 3; i++) {
        OK(cowslip_clone_new(template_, COWSLIP_PLACE_ANYWHERE, &clones[i], &why));
        uint64_t *mine = cowslip_clone_at(clones[i], words);
        CHECK(holds(mine, COUNT, 9));
        fill(mine, COUNT, 20 + (uint64_t)i);
    }
    for (int i = 0; i < 3; i++) {
        uint64_t *mine = cowslip_clone_at(clones[i], words);
        CHECK(holds(mine, COUNT, 20 + (uint64_t)i));
        OK(cowslip_clone_reset(clones[i], &why));
        CHECK(holds(mine, COUNT, 9));
        cowslip_clone_free(clones[i]);
    }
    CHECK(holds(words, COUNT, 9));

    FAILS(COWSLIP_USAGE, cowslip_template_new(NULL, &template_, &why), "frozen is NULL");
    FAILS(COWSLIP_USAGE, cowslip_clone_new(template_, 9, &clones[0], &why), "9");
    FAILS(COWSLIP_USAGE, cowslip_template_send(template_, -1, &why), "-1");
    FAILS(COWSLIP_USAGE, cowslip_clone_reset(NULL, &why), "clone is NULL");
    CHECK(cowslip_clone_at(NULL, words) == NULL);

    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cowslip_template_free(template_);
    cowslip_arena_free(arena);
    return 0;
}
