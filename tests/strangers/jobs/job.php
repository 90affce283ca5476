<?php ini_set('memory_limit', '-1'); $h = [];
for ($i = 0; $i < 200000; $i++) $h['key ' . ($i * 7919 % 1000003)] = [$i, "v$i"];
ksort($h); $s = 0; foreach ($h as $k => $v) $s = ($s * 31 + $v[0]) % 1000000007;
$t = str_repeat('abc', 20000000); echo count($h), ' ', $s, ' ', md5($t), ' ', md5(serialize($h)), "\n";
