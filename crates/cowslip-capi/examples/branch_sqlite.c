/*
 * An SQLite database in memory that answers what-if queries: each changes the data and asks, in a copy of its own.
 *
 *   cc -O2 branch_sqlite.c -lsqlite3 -o shop
 *   cowslip run -- ./shop 1024 &               # MiB of database
 *   cowslip branch shop "UPDATE product SET price = price + 1000 WHERE category = 3; SELECT ..."
 *
 * Without an argument a copy reads its SQL from standard input. The database itself stays as it was.
 */
#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int cowslip_branch_point(const char *name, int timeout_ms) __attribute__((weak));
static inline int branch_point(const char *name, int timeout_ms)
{ return cowslip_branch_point ? cowslip_branch_point(name, timeout_ms) : (errno = ENOSYS, -1); }

static const char SCHEMA[] =
    "PRAGMA journal_mode = OFF; PRAGMA cache_size = -8000000;"
    "CREATE TABLE product (id INTEGER PRIMARY KEY, category INTEGER, price INTEGER, stock INTEGER, text BLOB)";
static const char ROW[] = "INSERT INTO product VALUES (?1, ?1 % 97, 100 + ?1 * 7 % 9901, ?1 * 31 % 50, zeroblob(960))";

static int print_row(void *unused, int columns, char **values, char **names)
{
    (void)unused, (void)names;
    for (int i = 0; i < columns; i++)
        printf("%s%s", i ? "|" : "", values[i] ? values[i] : "");
    puts("");
    return 0;
}

static int execute(sqlite3 *db, const char *sql, sqlite3_callback each_row)
{
    char *why = NULL;
    if (sqlite3_exec(db, sql, each_row, NULL, &why) == SQLITE_OK)
        return 0;
    fprintf(stderr, "shop: %s\n", why);
    sqlite3_free(why);
    return 1;
}

static int fill(sqlite3 *db, long long mib)
{
    sqlite3_stmt *insert;
    if (execute(db, SCHEMA, NULL) || execute(db, "BEGIN", NULL) || sqlite3_prepare_v2(db, ROW, -1, &insert, NULL) != SQLITE_OK)
        return 1;
    for (long long row = 1; row <= mib << 10; row++) {
        sqlite3_bind_int64(insert, 1, row);
        if (sqlite3_step(insert) != SQLITE_DONE) {
            fprintf(stderr, "shop: %s\n", sqlite3_errmsg(db));
            return 1;
        }
        sqlite3_reset(insert);
    }
    return sqlite3_finalize(insert) != SQLITE_OK || execute(db, "COMMIT", NULL);
}

/* The question: an argument, or all of standard input. */
static int answer(sqlite3 *db)
{
    const char *sql = getenv("COWSLIP_BRANCH_ARG");
    static char text[1 << 16];
    if (!sql) {
        text[fread(text, 1, sizeof text - 1, stdin)] = '\0';
        sql = text;
    }
    return execute(db, sql, print_row);
}

int main(int argc, char **argv)
{
    long long mib = argc > 1 ? atoll(argv[1]) : 1024;
    sqlite3 *db;
    if (sqlite3_open(":memory:", &db) != SQLITE_OK || fill(db, mib))
        return 1;
    printf("%lld rows, %lld MiB\n", mib << 10, (long long)sqlite3_memory_used() >> 20);
    fflush(stdout);
    if (branch_point("shop", -1) >= 0)
        return answer(db);
    if (errno == ENOSYS) {
        fprintf(stderr, "shop: not under `cowslip run`: the answer is of the database itself\n");
        return answer(db);
    }
    return execute(db, "SELECT count(*), sum(price), sum(stock) FROM product", print_row);
}
