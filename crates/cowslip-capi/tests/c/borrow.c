/* Processes that borrow an image from a server: one copy in memory. argv: an image, a socket. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { COUNT = 1 << 19, PROCESSES = 3 };

/* Memory that this process has alone. */
static size_t own_bytes(void)
{
    char line[200];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "RssAnon: %zu kB", &kib) == 1)
            break;
    fclose(file);
    return kib << 10;
}

static void borrow(const char *image, const char *socket)
{
    cowslip_template *template_ = NULL;
    cowslip_clone *clone = NULL;
    const void *start = NULL;
    size_t length = 0;
    OK(cowslip_template_via(image, 0, socket, &template_, &why));
    OK(cowslip_template_root(template_, image, "words", &start, &length, &why));
    CHECK(length == COUNT * sizeof(uint64_t));
    FAILS(COWSLIP_USAGE, cowslip_template_root(template_, image, "none", &start, &length, &why),
          "none");
    OK(cowslip_clone_new(template_, COWSLIP_PLACE_ANYWHERE, &clone, &why));
    uint64_t *words = cowslip_clone_at(clone, start);
    CHECK(words != NULL);
    size_t before = own_bytes();
    CHECK(holds(words, COUNT, 3));
    CHECK(own_bytes() - before < length / 4);
    /* What is written is the process' own. */
    words[7] = 0;
    CHECK(words[7] == 0 && words[8] == 11);
    cowslip_clone_free(clone);
    cowslip_template_free(template_);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    cowslip_template *template_ = NULL;
    FAILS(COWSLIP_USAGE, cowslip_template_via(argv[1], 0, NULL, &template_, &why), "socket is NULL");
    FAILS(COWSLIP_USAGE, cowslip_template_via(argv[1], 0, argv[2], NULL, &why), "template is NULL");
    FAILS(COWSLIP_FILE, cowslip_template_via(argv[1], 0, "/nowhere", &template_, &why), "/nowhere");
    FAILS(COWSLIP_FILE, cowslip_template_via("/nowhere", 0, argv[2], &template_, &why), "/nowhere");
    for (int i = 0; i < PROCESSES; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            borrow(argv[1], argv[2]);
            exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = 0;
        CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return 0;
}
