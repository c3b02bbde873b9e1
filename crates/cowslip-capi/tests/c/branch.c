/* A branch point: without `cowslip run`, and without anybody who branches, the program goes on at once. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cowslip.h"

/* Under the preload library of `cowslip run` nobody waits; without it there is nobody who could be waited for. */
int main(void)
{
    int wanted = getenv("COWSLIP_TEST_PRELOADED") ? EAGAIN : ENOSYS;
    errno = 0;
    int index = cowslip_branch_point("test", 0);
    if (index != -1 || errno != wanted) {
        fprintf(stderr, "cowslip_branch_point: %d, errno %d\n", index, errno);
        return 1;
    }
    int fd = cowslip_branch_fd(NULL);
    if ((fd >= 0) != (wanted == EAGAIN)) {
        fprintf(stderr, "cowslip_branch_fd: %d, errno %d\n", fd, errno);
        return 1;
    }
    return 0;
}
