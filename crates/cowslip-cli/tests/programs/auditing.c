// A library for LD_AUDIT that sees each call of a function, and changes none (rtld-audit(7)).
#define _GNU_SOURCE
#include <link.h>

unsigned int la_version(unsigned int version) { return version; }

unsigned int la_objopen(struct link_map *object, Lmid_t scope, uintptr_t *cookie) {
    (void)object, (void)scope, (void)cookie;
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
