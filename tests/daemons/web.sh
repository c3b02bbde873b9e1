# Sourced by the web servers: a page that allocates and answers what was posted, and requests for it.

write_pages() {
    mkdir -p pages && head -c 1000000 /dev/zero | openssl enc -aes-128-ctr -K 0 -iv 0 >pages/large 2>/dev/null
    cat >pages/page.php <<'PHP'
<?php
$rows = [];
for ($i = 0; $i < 50 * (int) $_GET['n']; $i++) $rows[] = md5((string) $i);
$one = shell_exec('id -un; cat');
echo md5(implode($rows)), ' ', count($rows), ' ', md5(file_get_contents('php://input')), ' ', posix_getuid(), " $one";
PHP
    chmod -R a+rX .
}

use_pages() { # URL
    curl -s "$1/page.php?n=100"
    curl -s -H "Content-Type: any/thing" --data-binary @pages/large "$1/page.php?n=1"
    in_parallel curl -s "$1/page.php?n={}"
}
