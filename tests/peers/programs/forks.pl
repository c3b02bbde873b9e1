use strict;
use warnings;

my %words = map { $_ => "value $_ " x 10 } 1 .. 200_000;
my ($children, $differ) = (0, 0);
for my $turn (1 .. 40) {
    $words{$turn} = "turn $turn";
    my $pid = open(my $from, '-|') // die "fork: $!";
    if ($pid == 0) {
        my $wrong = grep { $words{$_} ne ($_ <= $turn ? "turn $_" : "value $_ " x 10) } 1 .. 5_000;
        delete $words{$_} for 1 .. 5_000;
        print scalar(keys %words) + $wrong;
        exit 0;
    }
    $differ++ if <$from> != 195_000;
    close $from or $differ++;
    $children++;
}
$differ++ if keys %words != 200_000;
print "$children children, $differ differ\n";
