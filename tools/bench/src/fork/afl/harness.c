// What AFL++ fuzzes: SQL on an SQLite database in memory. MIB of rows are loaded before the fork server
// starts, so that every test case gets its own copy of them from a fork.
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__AFL_FUZZ_INIT();

// Four rows fill a page of 4 KiB.
enum { ROWS_A_MIB = 1024, BLOB_BYTES = 980, MOST_SQL_BYTES = 4096, OPS_A_LOOK = 1000, MOST_LOOKS = 50 };

static sqlite3 *database;

static void must(int code, int expected) {
    if (code == expected) return;
    fprintf(stderr, "SQLite: %s\n", database ? sqlite3_errmsg(database) : sqlite3_errstr(code));
    exit(2);
}

static void load(long rows) {
    static unsigned char blob[BLOB_BYTES];
    unsigned state = 1;
    sqlite3_stmt *insert;
    must(sqlite3_exec(database,
             "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, s TEXT, v BLOB);"
             "CREATE TABLE u (a, b UNIQUE, c DEFAULT 7); CREATE INDEX ua ON u (a);"
             "INSERT INTO u VALUES (1, 'one', 1.5), (2, 'two', NULL);"
             "CREATE VIEW w AS SELECT a, s FROM u JOIN t ON a = id; BEGIN", NULL, NULL, NULL), SQLITE_OK);
    must(sqlite3_prepare_v2(database, "INSERT INTO t VALUES (?1, ?1 % 1000, 'row ' || ?1, ?2)", -1,
             &insert, NULL), SQLITE_OK);
    for (long row = 1; row <= rows; row++) {
        for (int i = 0; i < BLOB_BYTES; i++) blob[i] = (state = state * 1664525 + 1013904223) >> 24;
        sqlite3_bind_int64(insert, 1, row);
        sqlite3_bind_blob(insert, 2, blob, BLOB_BYTES, SQLITE_STATIC);
        must(sqlite3_step(insert), SQLITE_DONE);
        must(sqlite3_reset(insert), SQLITE_OK);
    }
    sqlite3_finalize(insert);
    must(sqlite3_exec(database, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
}

// A test case ends after so many steps: a look at all the rows says nothing new.
static int is_long(void *none) {
    static int looks;
    (void)none;
    return ++looks > MOST_LOOKS;
}

// Nothing that reaches files (VACUUM attaches one), and no single step that visits all pages.
static int allow(void *none, int action, const char *a, const char *b, const char *c, const char *d) {
    (void)none, (void)a, (void)b, (void)c, (void)d;
    int denied = action == SQLITE_ATTACH || action == SQLITE_PRAGMA || action == SQLITE_DROP_TABLE;
    return denied ? SQLITE_DENY : SQLITE_OK;
}

// One block for all of SQLite's memory. SQLite compares addresses of cells with those of pages, so that
// edges depend on how malloc places them; inside one block all offsets are alike. The distribution's library
// knows no such block (SQLITE_ENABLE_MEMSYS5), and has no edges.
static void pool(long mib) {
    sqlite3_config(SQLITE_CONFIG_HEAP, malloc(mib << 20), (int)(mib << 20), 64);
}

int main(int count, char **words) {
    if (count != 2 && count != 3) return 2;
    if (count == 3) pool(atol(words[2]));
    // Without lookaside: freeing asks whether an address lies above that buffer, so that edges would
    // depend on where malloc puts things.
    must(sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0), SQLITE_OK);
    must(sqlite3_open(":memory:", &database), SQLITE_OK);
    sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, 1, database);
    load(atol(words[1]) * ROWS_A_MIB);
    sqlite3_limit(database, SQLITE_LIMIT_LENGTH, 1 << 20);
    sqlite3_set_authorizer(database, allow, NULL);
    sqlite3_progress_handler(database, OPS_A_LOOK, is_long, NULL);

    __AFL_INIT();
    const unsigned char *given = __AFL_FUZZ_TESTCASE_BUF;
    int bytes = __AFL_FUZZ_TESTCASE_LEN;
    if (bytes < 0) bytes = 0;
    if (bytes > MOST_SQL_BYTES) bytes = MOST_SQL_BYTES;
    char sql[MOST_SQL_BYTES + 1];
    memcpy(sql, given, bytes);
    sql[bytes] = 0;
    sqlite3_exec(database, sql, NULL, NULL, NULL);
    _exit(0);
}
