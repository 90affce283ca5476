# Words counted in an array, and a sorted list of them.
set n 0
set in [open [lindex $argv 0]]
while {[gets $in line] >= 0} {
    foreach word $line { incr count($word); incr n }
}
set names [lsort [array names count]]
set total 0
foreach name $names { incr total $count($name) }
puts "$n $total [llength $names]"
