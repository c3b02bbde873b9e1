// A warm program that is branched: `branching WHAT [MIB]`. It says "ready" when its state is there.
//
// Copies say what they are and see; the program itself says what it sees when it is told to go on.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

// As docs/templates.md has it: a program that is not linked with Cowslip.
extern int cowslip_branch_point(const char *name, int timeout_ms) __attribute__((weak));
extern int cowslip_branch_fd(const char *name) __attribute__((weak));

static inline int branch_point(const char *name, int timeout_ms)
{
    return cowslip_branch_point ? cowslip_branch_point(name, timeout_ms) : (errno = ENOSYS, -1);
}

static uint64_t *state;
static size_t words;

static void fill(size_t mib)
{
    words = (mib << 20) / sizeof *state;
    state = malloc(words * sizeof *state);
    for (size_t i = 0; i < words; i++)
        state[i] = i * 0x9e3779b97f4a7c15u;
}

// A sum in which each word has a weight, so that words that change places are noticed.
static uint64_t digest(void)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < words; i++)
        sum += state[i] * (2 * i + 1);
    return sum;
}

static const char *of(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "-";
}

static void say_what_it_is(int index)
{
    printf("copy %d: COWSLIP_BRANCH=%s of %s, argument %s, COLOUR=%s\n", index, of("COWSLIP_BRANCH"),
           of("COWSLIP_BRANCHES"), of("COWSLIP_BRANCH_ARG"), of("COLOUR"));
}

// Changes its state in its own way, and says before and after what it is.
static int content(int index)
{
    char line[64];
    uint64_t before = digest();
    for (size_t i = 0; i < words; i += 512)
        state[i] += index + 1;
    say_what_it_is(index);
    printf("before %016llx after %016llx\n", (unsigned long long)before, (unsigned long long)digest());
    while (fgets(line, sizeof line, stdin))
        printf("read: %s", line);
    fprintf(stderr, "errors of %d, seed %s\n", index, of("COWSLIP_BRANCH_SEED"));
    return 0;
}

static int obey(int index)
{
    const char *what = of("COWSLIP_BRANCH_ARG");
    say_what_it_is(index);
    fflush(stdout);
    if (strncmp(what, "exit ", 5) == 0)
        return atoi(what + 5);
    if (strcmp(what, "abort") == 0)
        abort();
    if (strcmp(what, "again") == 0) {
        // A copy that is branched itself: by its process id, which is known once it may be.
        if (branch_point("inner", 0) != -1 || errno != EAGAIN)
            return 1;
        printf("pid %d\n", getpid());
        fflush(stdout);
        index = branch_point("inner", -1);
        printf("inner %d of %s, argument %s\n", index, of("COWSLIP_BRANCHES"), of("COWSLIP_BRANCH_ARG"));
        return 0;
    }
    if (strcmp(what, "work") == 0) {
        usleep(50000);
        return 0;
    }
    if (strcmp(what, "digest") == 0) {
        // Once it is told that the program is gone.
        getchar();
        printf("digest %016llx\n", (unsigned long long)digest());
        return 0;
    }
    for (;;)
        pause();
}

// Two counters that a thread always steps one after the other: of one instant they differ by one at most, and all copies of
// one request see the same.
static struct {
    _Atomic uint64_t first;
    char elsewhere[1 << 20];
    _Atomic uint64_t second;
} *pair;

static void *step(void *unused)
{
    (void)unused;
    for (;;) {
        pair->first++;
        pair->second++;
    }
    return NULL;
}

static int is_told;

static void on_signal(int number)
{
    (void)number;
    is_told = 1;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "content";
    int index;
    // Who runs the tests in the background has it ignored.
    signal(SIGINT, SIG_DFL);
    fill(argc > 2 ? atoi(argv[2]) : 16);
    if (argc > 3) {
        // What comes before is the program's alone: it is still in the buffer.
        printf("once ");
    }
    if (strcmp(what, "natively") == 0) {
        index = branch_point("native", -1);
        printf("%d %s\n", index, strerror(errno));
        return 0;
    }
    if (strcmp(what, "filtered") == 0) {
        struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog filter = {1, &allow};
        int before = branch_point(NULL, 0) == -1 && errno == EAGAIN;
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
        index = branch_point(NULL, -1);
        printf("%d %d %s\n", before, index, strerror(errno));
        return 0;
    }
    if (strcmp(what, "instant") == 0) {
        pthread_t thread;
        pair = malloc(64 << 20);
        memset(pair, 0, 64 << 20);
        pthread_create(&thread, NULL, step, NULL);
    }
    if (strcmp(what, "steps") == 0) {
        // It never waits: it works, looks whether somebody wants to branch it, and works again.
        for (uint64_t done = 1;; done++) {
            state[0] = done;
            index = branch_point("steps", 0);
            if (index >= 0) {
                printf("step %llu\n", (unsigned long long)state[0]);
                return 0;
            }
            if (errno == ECANCELED)
                return 0;
            if (errno != EAGAIN)
                return 1;
            if (done == 1) {
                puts("ready");
                fflush(stdout);
            }
        }
    }
    if (strcmp(what, "loop") == 0) {
        // A program that waits for many things.
        struct pollfd wanted = {cowslip_branch_fd("loop"), POLLIN, 0};
        puts("ready");
        fflush(stdout);
        for (;;) {
            if (poll(&wanted, 1, -1) != 1)
                return 1;
            index = branch_point("loop", 0);
            if (index >= 0)
                return content(index);
            if (errno == ECANCELED)
                return 0;
        }
    }
    if (strcmp(what, "signal") == 0) {
        struct sigaction action = {.sa_handler = on_signal};
        sigaction(SIGUSR1, &action, NULL);
    }
    if (strcmp(what, "late") == 0) {
        puts("ready");
        fflush(stdout);
        return branch_point(argv[3], -1) < 0;
    }
    if (branch_point("4711", 0) != -1 || errno != EINVAL || branch_point("a/b", 0) != -1)
        return 1;
    // The socket is there from the first call on.
    if (branch_point(argc > 3 ? argv[3] : NULL, 0) != -1 || errno != EAGAIN)
        return 1;
    puts("ready");
    fflush(stdout);
    if (argc > 3)
        printf("held back ");
    index = branch_point(NULL, -1);
    if (index < 0) {
        printf("%s, %d, digest %016llx\n", strerror(errno), is_told, (unsigned long long)digest());
        return 0;
    }
    if (strcmp(what, "instant") == 0) {
        printf("%llu %llu\n", (unsigned long long)pair->first, (unsigned long long)pair->second);
        return 0;
    }
    return strcmp(what, "content") == 0 ? content(index) : obey(index);
}
