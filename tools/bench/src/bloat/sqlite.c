/* A database in memory that is filled with documents, of which most are deleted, and then asked.
   arguments: MEBIBYTES, DELETED_PERCENT. A line on standard input is one of
     delete        -> how many documents are left
     serve MS      -> documents read in so many milliseconds, and how many were not what was inserted
   What was deleted is given back to the kernel. Documents are of 1 KB, as of YCSB, and are checked when they
   are read. */
#include <malloc.h>
#include <sqlite3.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DOCUMENT = 1024 };

static sqlite3 *db;

static void fail(const char *doing) {
    fprintf(stderr, "error: %s: %s\n", doing, db ? sqlite3_errmsg(db) : "");
    exit(1);
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void compose(uint64_t id, uint64_t *words) {
    for (int i = 0; i < DOCUMENT / 8; i++) words[i] = mix(id * (DOCUMENT / 8) + i);
}

static void run(const char *sql) {
    if (sqlite3_exec(db, sql, 0, 0, 0) != SQLITE_OK) fail(sql);
}

static sqlite3_stmt *prepare(const char *sql) {
    sqlite3_stmt *statement;
    if (sqlite3_prepare_v2(db, sql, -1, &statement, 0) != SQLITE_OK) fail(sql);
    return statement;
}

static uint64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int is_kept(uint64_t id, int deleted) { return (int)(mix(~id) % 100) >= deleted; }

int main(int argc, char **argv) {
    if (argc != 3) fail("two arguments are wanted");
    uint64_t documents = strtoull(argv[1], 0, 10) * 1024, kept = 0;
    int deleted = atoi(argv[2]);
    uint64_t words[DOCUMENT / 8], *ids = malloc(documents * sizeof *ids);
    if (!ids || sqlite3_open(":memory:", &db) != SQLITE_OK) fail("open a database");
    run("PRAGMA auto_vacuum=FULL; PRAGMA journal_mode=OFF; CREATE TABLE d(id INTEGER PRIMARY KEY, body BLOB); BEGIN");
    sqlite3_stmt *insert = prepare("INSERT INTO d VALUES(?,?)");
    for (uint64_t id = 0; id < documents; id++) {
        compose(id, words);
        sqlite3_bind_int64(insert, 1, id);
        sqlite3_bind_blob(insert, 2, words, DOCUMENT, SQLITE_STATIC);
        if (sqlite3_step(insert) != SQLITE_DONE) fail("insert");
        sqlite3_reset(insert);
    }
    run("COMMIT");
    puts("filled");
    fflush(stdout);

    char line[64];
    sqlite3_stmt *select = prepare("SELECT body FROM d WHERE id=?");
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "delete\n")) {
            sqlite3_stmt *erase = prepare("DELETE FROM d WHERE id=?");
            for (uint64_t id = 0; id < documents; id++) {
                if (id % 4096 == 0) run(id ? "COMMIT; BEGIN" : "BEGIN");
                if (is_kept(id, deleted)) continue;
                sqlite3_bind_int64(erase, 1, id);
                if (sqlite3_step(erase) != SQLITE_DONE) fail("delete");
                sqlite3_reset(erase);
            }
            sqlite3_finalize(erase);
            run("COMMIT");
            malloc_trim(0);
            kept = 0;
            for (uint64_t id = 0; id < documents; id++)
                if (is_kept(id, deleted)) ids[kept++] = id;
            printf("%llu\n", (unsigned long long)kept);
        } else if (!strncmp(line, "serve ", 6)) {
            uint64_t end = milliseconds() + strtoull(line + 6, 0, 10), reads = 0, changed = 0, seed = 1;
            while (kept && milliseconds() < end) {
                for (int i = 0; i < 256; i++, reads++) {
                    uint64_t id = ids[(seed = mix(seed)) % kept];
                    sqlite3_bind_int64(select, 1, id);
                    if (sqlite3_step(select) != SQLITE_ROW) fail("a document is gone");
                    compose(id, words);
                    changed += sqlite3_column_bytes(select, 0) != DOCUMENT ||
                               memcmp(sqlite3_column_blob(select, 0), words, DOCUMENT);
                    sqlite3_reset(select);
                }
            }
            printf("%llu %llu\n", (unsigned long long)reads, (unsigned long long)changed);
        } else {
            fail("a command is wanted");
        }
        fflush(stdout);
    }
    return 0;
}
