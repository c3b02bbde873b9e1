/* A restore that asks a server. argv: an image, `via` ("NULL": NULL), and how it ends: ok, file. */
#include "check.h"

enum { COUNT = 1 << 19 };

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    cowslip_restore_options how;
    memset(&how, 0, sizeof how);
    how.size = sizeof how;
    how.via = strcmp(argv[2], "NULL") ? argv[2] : NULL;
    cowslip_arena *arena = NULL;
    if (!strcmp(argv[3], "file")) {
        FAILS(COWSLIP_FILE, cowslip_restore(argv[1], &how, &arena, &why), argv[2]);
        return 0;
    }
    OK(cowslip_restore(argv[1], &how, &arena, &why));
    void *start = NULL;
    size_t length = 0;
    OK(cowslip_root_find(arena, "words", &start, &length, &why));
    CHECK(length == COUNT * sizeof(uint64_t));
    CHECK(holds(start, COUNT, 3));
    fill(start, COUNT, 8);
    OK(cowslip_restore_wait(arena, 60000000000ull, &why));
    CHECK(holds(start, COUNT, 8));
    cowslip_arena_free(arena);
    return 0;
}
