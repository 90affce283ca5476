use strict; my %h; my @a;
for my $i (0 .. 149_999) { $h{"key " . ($i * 7919 % 1000003)} = [$i, "v$i"]; push @a, $i * 31 % 65537; }
my $s = 0; for my $k (sort keys %h) { $s = ($s * 31 + $h{$k}[0]) % 1000000007; }
@a = sort { $a <=> $b } @a; my $t = "x" x 60_000_000; $t =~ tr/x/y/; my $n = () = $t =~ /y{1000}/g;
print scalar(keys %h), " $s $a[75000] $n\n"; my $pid = fork; if (!$pid) { my $c = 0; $c += $_->[0] for values %h; print "$c\n"; exit 3 } wait; print $? >> 8, "\n";
