/* A module: it allocates, frees and forks by its own lookups. */
#include <stdlib.h>
#include <unistd.h>

void *module_malloc(size_t size) { return malloc(size); }
void module_free(void *block) { free(block); }
pid_t module_fork(void) { return fork(); }
