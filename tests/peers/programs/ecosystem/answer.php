<?php
$sum = 0;
foreach (range(0, 999) as $i) {
    $sum += $i;
}
echo "answer $sum\n";
