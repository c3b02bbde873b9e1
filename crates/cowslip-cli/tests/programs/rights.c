/* Changes this thread's rights in the way that the last argument names, in another root without /proc if "chroot" comes
 * before it, and says which of its threads have others: natively none has. Memory is right before and after. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/kcmp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64 << 20, NOBODY = 65534 };

int capset(cap_user_header_t header, const cap_user_data_t data);

static char *memory;
static int tasks = -1; /* /proc/self/task */

static void check(int answer, const char *what) {
    if (answer < 0) {
        printf("%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void fork_once(char expected) {
    memory[0] = expected;
    pid_t child = fork();
    check(child, "fork");
    if (child == 0) {
        int wrong = memory[0] != expected;
        for (size_t at = 4096; at < BYTES; at += 4096) wrong |= memory[at] != 7;
        _exit(wrong);
    }
    int status;
    check(waitpid(child, &status, 0), "waitpid");
    printf("child: %d\n", status);
}

/* The lines of /proc about a thread's rights, and its namespaces. */
static void describe(const char *thread, char *text, size_t size) {
    static const char *const keys[] = {"Uid:", "Gid:", "Groups:", "CapEff:", "CapPrm:", "CapBnd:", "NoNewPrivs:"};
    char path[96], line[4096];
    text[0] = 0;
    snprintf(path, sizeof path, "%s/status", thread);
    int descriptor = openat(tasks, path, O_RDONLY);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "r");
    if (!file) return;
    while (fgets(line, sizeof line, file))
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            if (!strncmp(line, keys[i], strlen(keys[i]))) strncat(text, line, size - strlen(text) - 1);
    fclose(file);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/ns/%s", thread, i ? "user" : "mnt");
        ssize_t length = readlinkat(tasks, path, line, sizeof line - 1);
        line[length < 0 ? 0 : length] = 0;
        strncat(text, line, size - strlen(text) - 1);
    }
}

static void compare_threads(void) {
    char own[16], mine[8192], theirs[8192];
    snprintf(own, sizeof own, "%ld", (long)syscall(SYS_gettid));
    if (fcntl(tasks, F_GETFD) < 0) tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
    describe(own, mine, sizeof mine);
    int again = openat(tasks, ".", O_RDONLY | O_DIRECTORY);
    DIR *threads = again < 0 ? NULL : fdopendir(again);
    if (!threads) check(-1, "opendir");
    for (struct dirent *it; (it = readdir(threads));) {
        if (it->d_name[0] == '.') continue;
        describe(it->d_name, theirs, sizeof theirs);
        if (syscall(SYS_kcmp, getpid(), atoi(it->d_name), KCMP_FILES, 0, 0) > 0) puts("another table of descriptors");
        if (theirs[0] && strcmp(mine, theirs)) printf("this thread:\n%s\nanother:\n%s\n", mine, theirs);
    }
    closedir(threads);
}

static void drop_users(void) {
    check(syscall(SYS_setgroups, 0, NULL), "setgroups");
    check(syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY), "setresgid");
    check(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY), "setresuid");
    /* Else /proc is root's. */
    prctl(PR_SET_DUMPABLE, 1);
}

static void change_root(void) {
    char place[] = "/tmp/rights-XXXXXX";
    if (!mkdtemp(place)) check(-1, "mkdtemp");
    check(chdir(place), "chdir");
    check(rmdir(place), "rmdir");
    check(chroot("."), "chroot");
}

static int pipes[2][2];

static void *second(void *unused) {
    char byte;
    check(read(pipes[0][0], &byte, 1), "read");
    drop_users();
    check(write(pipes[1][1], "", 1), "write");
    check(read(pipes[0][0], &byte, 1), "read");
    return unused;
}

static void change(const char *how) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    if (!strcmp(how, "users")) {
        drop_users();
    } else if (!strcmp(how, "users by libc")) {
        check(setgid(NOBODY), "setgid");
        check(setuid(NOBODY), "setuid");
        prctl(PR_SET_DUMPABLE, 1);
    } else if (!strcmp(how, "capabilities")) {
        check(capset(&header, none), "capset");
    } else if (!strcmp(how, "capabilities by number")) {
        check(syscall(SYS_capset, &header, none), "capset");
    } else if (!strcmp(how, "bounding set")) {
        check(prctl(PR_CAPBSET_DROP, CAP_SYS_MODULE, 0, 0, 0), "prctl");
    } else if (!strcmp(how, "no new privileges")) {
        check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl");
    } else if (!strcmp(how, "user namespace")) {
        check(unshare(CLONE_NEWUSER), "unshare");
    } else if (!strcmp(how, "mount namespace")) {
        int own = open("/proc/self/ns/mnt", O_RDONLY);
        check(setns(own, CLONE_NEWNS), "setns");
        check(unshare(CLONE_NEWNS), "unshare");
    } else if (!strcmp(how, "descriptors")) {
        check(unshare(CLONE_FILES), "unshare");
    } else if (!strcmp(how, "descriptors by range")) {
        check(syscall(SYS_close_range, 3, ~0U, 2 /* CLOSE_RANGE_UNSHARE */), "close_range");
    } else {
        printf("%s is not known\n", how);
        exit(2);
    }
}

int main(int count, char **arguments) {
    const char *how = arguments[count - 1];
    int has_second = !strcmp(how, "two threads");
    pthread_t thread;
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 7, BYTES);
    check(pipe(pipes[0]) | pipe(pipes[1]), "pipe");
    tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
    if (has_second) pthread_create(&thread, NULL, second, NULL);
    fork_once(1);
    if (!strcmp(arguments[1], "chroot")) change_root();
    if (has_second) {
        char byte;
        check(write(pipes[0][1], "", 1), "write");
        check(read(pipes[1][0], &byte, 1), "read");
        drop_users();
        fork_once(2);
    } else {
        change(how);
    }
    compare_threads();
    fork_once(3);
    compare_threads();
    if (has_second) {
        check(write(pipes[0][1], "", 1), "write");
        pthread_join(thread, NULL);
    }
    for (size_t at = 4096; at < BYTES; at += 4096)
        if (memory[at] != 7) printf("wrong at %zu\n", at);
    puts("done");
}
