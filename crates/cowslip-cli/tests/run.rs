//! Programs on glibc's malloc under `cowslip run`: their heap is in the arena, and forks keep it apart.

mod support;

use std::ffi::OsStr;
use std::path::Path;

use cowslip_sys::scheduling::may_end_idle;
use support::{Folder, Ran, compile, under_cowslip};

/// A heap of some 100 MB, changed on both sides of several forks. Dies if a side sees the other's.
const FORKING: &str = r#"
    my @values = map { "value $_ " x 50 } 0 .. 99_999;
    for my $round (1 .. 5) {
        my $child = fork;
        die "fork: $!" unless defined $child;
        if (!$child) {
            my $right = $values[$round - 1] eq ($round > 1 ? "of the parent" : "value 0 " x 50)
                && $values[99_999] eq "value 99999 " x 50;
            $_ = "of the child" for @values;
            exit($right ? 0 : 1);
        }
        $values[$round] = "of the parent";
        waitpid($child, 0);
        die "the child of round $round saw wrong values" if $?;
    }
    die "the parent sees its children's values" if grep { $_ eq "of the child" } @values;
"#;

/// Runs perl, and returns its output and its report; `None` without perl.
fn perl(options: &[&str], script: &str) -> Option<(Ran, Option<serde_json::Value>)> {
    if !Path::new("/usr/bin/perl").exists() {
        println!("SKIPPED: no perl here, which every Debian has");
        return None;
    }
    let program = ["/usr/bin/perl", "-e", script].map(OsStr::new);
    let (ran, report) = under_cowslip(options, &program);
    assert!(ran.status.success(), "{}", ran.stderr);
    Some((ran, report))
}

#[test]
fn the_heap_of_a_program_on_glibc_malloc_is_in_the_arena() {
    let Some((_, report)) = perl(&[], FORKING) else { return };
    let report = report.expect("a report");
    assert!(report["forks"].as_u64() >= Some(5), "{report}");
    assert!(report["freezes"].as_u64() >= Some(1), "{report}");
    assert!(report["used_bytes"].as_u64() >= Some(30 << 20), "{report}");
    // 100 MB are in it, beside the program's own data and stacks.
    assert!(report["anonymous_in_arena_percent"].as_f64() >= Some(90.0), "{report}");
}

/// A fork that was just made leaves nothing of the arena mapped. The child ends without a report of its own, which would
/// replace its parent's: it outlives it.
#[test]
fn what_the_arena_holds_counts_though_little_of_it_is_mapped() {
    let script = r#"
        my $text = "text" x 10_000_000;
        pipe(my $told, my $tell);
        my $child = fork // die "fork: $!";
        if (!$child) { close $tell; sysread($told, my $word, 1); kill KILL => $$; }
    "#;
    let Some((_, report)) = perl(&[], script) else { return };
    let report = report.expect("a report");
    let bytes = |name: &str| report[name].as_u64().expect("a number");
    assert!(bytes("resident_bytes") < bytes("held_bytes") / 4, "{report}");
    assert!(bytes("held_bytes") >= 40_000_000, "{report}");
    assert!(report["anonymous_in_arena_percent"].as_f64() >= Some(95.0), "{report}");
}

#[test]
fn a_malloc_that_is_to_be_kept_is() {
    let Some((_, report)) = perl(&["--malloc", "keep"], FORKING) else { return };
    let report = report.expect("a report");
    // There may be no arena at all.
    let used = report.get("used_bytes").map_or(0, |bytes| bytes.as_u64().expect("a number"));
    assert!(used < 8 << 20, "glibc's heap cannot be in an arena: {report}");
}

/// A program that the process itself execs is the one that the user meant; a child's is another one.
#[test]
fn what_it_execs_is_helped_and_what_its_children_exec_if_that_is_asked() {
    let look =
        r#"/usr/bin/perl -ne 'print "helped" if /libcowslip_preload/ && !$n++' /proc/self/maps"#;
    let exec = format!("exec {look}");
    let child = format!("system(q({look})); print qq(, ), $ENV{{LD_PRELOAD}} // q(nothing)");
    let said = |options: &[&str], script: &str| perl(options, script).map(|(ran, _)| ran.stdout);
    // The `exec` of one string runs a shell first.
    let Some(launched) = said(&[], &format!("exec q({exec})")) else { return };
    assert_eq!(launched, "helped");
    assert_eq!(said(&[], &child).unwrap(), ", nothing");
    let followed = said(&["--follow-exec"], &child).unwrap();
    assert!(followed.starts_with("helped, ") && followed.contains("libcowslip_preload.so"));
}

/// A child that is busy until it is told to wait. Prints its scheduling policy (`proc_pid_stat(5)`) and niceness while
/// it is busy after the fork, and while it waits. The expected values are the arguments, and may take a while to
/// appear.
const GIVING_WAY: &str = r#"
    use IO::Handle;
    my $values = "value " x 1_000_000;
    my ($nice, @wanted) = (getpriority(0, 0), @ARGV);
    pipe(my $told, my $tell);
    my $child = fork // die "fork: $!";
    if (!$child) {
        $told->blocking(0);
        1 while !sysread($told, my $word, 1);
        $told->blocking(1);
        exit(sysread($told, $word, 1) == 1 ? 0 : 1);
    }
    for my $wanted (@wanted) {
        my ($seen, $until) = ("", time + 30);
        while ($seen ne $wanted) {
            die "$seen instead of $wanted" if time > $until;
            open(my $stat, "<", "/proc/$child/stat") or die;
            my @fields = split(" ", <$stat> =~ s/.*\) //r);
            $seen = "$fields[38]," . ($fields[16] - $nice);
            select(undef, undef, undef, 0.001);
        }
        syswrite($tell, "x");
    }
    waitpid($child, 0);
    die if $?;
"#;

#[test]
fn children_give_way_and_get_their_share() {
    if !may_end_idle() {
        println!("SKIPPED: share: it takes CAP_SYS_NICE");
        return;
    }
    let asked = ["/usr/bin/perl", "-e", GIVING_WAY, "5,0", "0,0"].map(OsStr::new);
    let (ran, report) = under_cowslip(&["--child-share", "25"], &asked);
    assert!(ran.status.success(), "{}", ran.stderr);
    let report = report.expect("a report");
    assert!(report["child_turns"].as_u64() >= Some(2), "{report}");

    let not_asked = ["/usr/bin/perl", "-e", GIVING_WAY, "0,0", "0,0"].map(OsStr::new);
    let (ran, report) = under_cowslip(&[], &not_asked);
    assert!(ran.status.success(), "{}", ran.stderr);
    assert_eq!(report.expect("a report")["child_turns"], 0);
}

/// Without `CAP_SYS_NICE` an idle thread stays idle.
#[test]
fn children_are_nice_where_a_share_is_denied() {
    let without =
        ["/usr/bin/prlimit", "--nice=0", "/usr/bin/setpriv", "--bounding-set", "-sys_nice"];
    let without = if may_end_idle() { &without[..] } else { &[] };
    let program = ["/usr/bin/perl", "-e", GIVING_WAY, "0,10", "0,10"];
    let program: Vec<_> = without.iter().chain(&program).map(OsStr::new).collect();
    let options = ["--follow-exec", "--log", "-", "--child-share", "25"];
    let (ran, report) = under_cowslip(&options, &program);
    assert!(ran.status.success(), "{}", ran.stderr);
    assert!(ran.stderr.contains("children are nicer by 10 instead"), "{}", ran.stderr);
    assert_eq!(report.expect("a report")["child_turns"], 0);
}

/// A child that reads and never ends, while its parent writes over all of its memory.
const COSTLY: &str = r#"
    my @values = map { "value $_ " x 50 } 0 .. 99_999;
    my $child = fork // die "fork: $!";
    if (!$child) {
        sleep 1 while 1;
    }
    select(undef, undef, undef, 0.05);
    for (@values) { substr($_, 0, 5) = "VALUE" }
    waitpid($child, 0) == $child or die;
    print "ended by $?";
    die if grep { substr($_, 0, 6) ne "VALUE " } @values;
"#;

#[test]
fn a_child_that_costs_too_much_is_ended_and_its_parent_goes_on() {
    let options = ["--child-memory", "8M", "--log", "-"];
    let Some((ran, report)) = perl(&options, COSTLY) else { return };
    assert_eq!(ran.stdout, "ended by 15");
    assert_eq!(report.expect("a report")["ended_children"], 1);
    assert!(ran.stderr.contains("is ended: too many private copies"), "{}", ran.stderr);
}

#[test]
fn threads_that_end_by_a_system_call_are_no_threads_of_the_bundled_malloc() {
    let folder = Folder::new("ending");
    let Some(program) = compile(&folder, "ending") else { return };
    let (ran, _) = under_cowslip(&[], &[program.as_os_str()]);
    assert_eq!(
        (ran.status.code(), ran.stdout.as_str()),
        (Some(0), "150 ended\n"),
        "{}",
        ran.stderr
    );
}

/// Every function that glibc's malloc has, in a program that checks them, with one thread and with several, in
/// children and in theirs.
#[test]
fn the_bundled_malloc_has_the_whole_family() {
    let folder = Folder::new("family");
    let Some(program) = compile(&folder, "family") else { return };
    for malloc in ["bundled", "keep"] {
        let (ran, _) = under_cowslip(&["--malloc", malloc], &[program.as_os_str()]);
        assert!(ran.status.success(), "--malloc {malloc}: {:?}: {}", ran.status, ran.stderr);
    }
}

/// A program with a small heap forks as it does natively: it never has a page of the bundled malloc's.
#[test]
fn the_first_mib_of_a_heap_is_glibcs() {
    let folder = Folder::new("crossing");
    let Some(program) = compile(&folder, "crossing") else { return };
    let (ran, _) = under_cowslip(&[], &[program.as_os_str()]);
    assert!(ran.status.success(), "{:?}: {}", ran.status, ran.stderr);
    assert_eq!(ran.stdout, "small\nlarge\n");
}

#[test]
fn forks_of_one_thread_leave_the_bundled_mallocs_locks_alone() {
    let folder = Folder::new("copies");
    let Some(program) = compile(&folder, "fork_copies") else { return };
    let copied = |arguments: &[&str]| {
        let arguments = arguments.iter().map(OsStr::new);
        let words: Vec<_> = [program.as_os_str()].into_iter().chain(arguments).collect();
        let (ran, _) = under_cowslip(&[], &words);
        assert!(ran.status.success(), "{}", ran.stderr);
        ran.stdout.trim().parse::<u32>().expect("a number")
    };
    let (alone, after_another) = (copied(&[]), copied(&["thread"]));
    // Its locks are on ten pages per arena, and the other thread's arena has some too.
    assert!(alone + 10 <= after_another, "{alone} pages, {after_another} after another thread");
}

/// As systemd starts services: a client that goes away is an error of a write, and ends nothing.
#[test]
fn a_program_has_the_signals_and_the_descriptors_that_it_was_started_with() {
    let shell = |setting: &str, program: &str| {
        let script = format!("{setting}; exec {program}");
        let ran = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        String::from_utf8(ran.stdout).unwrap()
    };
    let cowslip = format!("{} run --quiet --", support::COWSLIP);
    for (setting, program) in [
        ("trap '' PIPE", "grep Sig[BIC] /proc/self/status"),
        ("trap '' PIPE HUP", "grep Sig[BIC] /proc/self/status"),
        (":", "grep Sig[BIC] /proc/self/status"),
        ("exec <&-", "stat -L --format=%F /proc/self/fd/0 /proc/self/fd/2"),
        ("exec <&- 2>&-", "stat -L --format=%F /proc/self/fd/0 /proc/self/fd/2"),
    ] {
        let wanted = shell(setting, program);
        assert_eq!(shell(setting, &format!("{cowslip} {program}")), wanted, "{setting}");
    }
}
