// A fork server over an SQLite database in memory: loads MIB of it, then for SECONDS has one child after
// another run a few statements on its copy. Prints what a child's statements answered (each must be the
// same) and how many children ran.
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static sqlite3 *database;

static void run(const char *sql) {
    char *why = NULL;
    if (sqlite3_exec(database, sql, NULL, NULL, &why) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", sql, why ? why : "?");
        _exit(2);
    }
}

static long long answer(const char *sql) {
    sqlite3_stmt *statement;
    if (sqlite3_prepare_v2(database, sql, -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW) {
        fprintf(stderr, "%s: %s\n", sql, sqlite3_errmsg(database));
        _exit(2);
    }
    long long number = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return number;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

// What a test case does: an insert, an update, a delete and a look at the result.
static int child(long long rows) {
    run("BEGIN; INSERT INTO t VALUES (NULL, zeroblob(500));"
        "UPDATE t SET v = 'written' WHERE id IN (7, 70000); DELETE FROM t WHERE id = 9; COMMIT");
    long long left = answer("SELECT count(*) FROM t WHERE id < 100");
    long long last = answer("SELECT max(id) FROM t");
    long long same = answer("SELECT v = 'written' FROM t WHERE id = 7");
    return left == 98 && last == rows + 1 && same == 1 ? 0 : 1;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    long long rows = atoll(words[1]) * 1000;
    char fill[200];
    snprintf(fill, sizeof fill,
             "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %lld) "
             "INSERT INTO t SELECT i, randomblob(1000) FROM n", rows);
    if (sqlite3_open(":memory:", &database) != SQLITE_OK) return 2;
    run("CREATE TABLE t (id INTEGER PRIMARY KEY, v BLOB)");
    run(fill);
    double begin = seconds(), end = begin + atof(words[2]), now;
    long children = 0;
    while ((now = seconds()) < end || children < 3) {
        pid_t pid = fork();
        if (pid < 0) return 2;
        if (pid == 0) _exit(child(rows));
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0) {
            fprintf(stderr, "child %ld: wait status %#x\n", children, status);
            return 1;
        }
        children++;
    }
    if (answer("SELECT max(id) FROM t") != rows || answer("SELECT count(*) FROM t WHERE id = 9") != 1) {
        fprintf(stderr, "the parent sees what a child wrote\n");
        return 1;
    }
    printf("%ld %.6f\n", children, now - begin);
    return 0;
}
