<?php
// A heap, a module that PHP loads with RTLD_DEEPBIND, and children.
$all = [];
for ($i = 0; $i < 200000; $i++) {
    $all["key $i"] = str_repeat(chr(65 + $i % 26), 5);
}
echo count($all), " ", strlen(implode("", $all)), "\n";
echo strlen(gzuncompress(gzcompress(implode("", $all)))) === 1000000 ? "modules ok\n" : "modules differ\n";
