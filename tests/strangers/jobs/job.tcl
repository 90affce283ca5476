for {set i 0} {$i < 120000} {incr i} { set h([expr {$i * 7919 % 1000003}]) [list $i "v$i"] }
set s 0
foreach k [lsort -integer [array names h]] { set s [expr {($s * 31 + [lindex $h($k) 0]) % 1000000007}] }
puts "[array size h] $s [string length [string repeat abc 20000000]]"
