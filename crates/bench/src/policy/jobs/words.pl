# Words counted, and sorted by how often they occur.
my (%count, %lines);
while (my $line = <>) {
    for my $word (split ' ', $line) { $count{$word}++; push @{$lines{substr($word, 0, 4)}}, $.; }
}
my @best = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
print scalar(@best), " $best[0] ", scalar(keys %lines), "\n";
