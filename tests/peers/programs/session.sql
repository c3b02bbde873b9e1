CREATE TABLE t(x INTEGER PRIMARY KEY, y BLOB);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 524288)
    INSERT INTO t SELECT i, zeroblob(100) FROM n;
.shell echo child
.output |cat
SELECT count(*) FROM t;
.output stdout
UPDATE t SET y = randomblob(50) WHERE x % 3 = 0;
SELECT count(*), sum(x) FROM t;
PRAGMA integrity_check;
