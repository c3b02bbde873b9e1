//! Programs on glibc's malloc under `cowslip run`: their heap is in the arena, and forks keep it apart.

mod support;

use std::ffi::OsStr;
use std::path::Path;

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

/// What it printed and reported at exit; `None` without perl.
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
    // 100 MB of it, beside the program's own data and stacks.
    assert!(report["anonymous_in_arena_percent"].as_f64() >= Some(90.0), "{report}");
}

#[test]
fn a_malloc_that_is_to_be_kept_is() {
    let Some((_, report)) = perl(&["--malloc", "keep"], FORKING) else { return };
    let report = report.expect("a report");
    // There may be no arena at all.
    let used = report.get("used_bytes").map_or(0, |bytes| bytes.as_u64().expect("a number"));
    assert!(used < 8 << 20, "glibc's heap cannot be in an arena: {report}");
}

#[test]
fn programs_it_execs_are_helped_only_if_asked() {
    let script = r#"exec "/usr/bin/perl", "-e", 'print $ENV{LD_PRELOAD} // "nothing"'"#;
    let Some((alone, _)) = perl(&[], script) else { return };
    assert_eq!(alone.stdout, "nothing");
    let Some((followed, _)) = perl(&["--follow-exec"], script) else { return };
    assert!(followed.stdout.contains("libcowslip_preload.so"), "{}", followed.stdout);
}

#[test]
fn children_give_way_if_asked() {
    let script = r#"
        my $values = "value " x 1_000_000;
        $| = 1;
        print getpriority(0, 0), " ";
        my $child = fork // die "fork: $!";
        if (!$child) { print getpriority(0, 0), " "; exit }
        waitpid($child, 0);
        print getpriority(0, 0);
    "#;
    for (options, more) in [(&[][..], 0), (&["--child-nice", "7"], 7)] {
        let Some((ran, _)) = perl(options, script) else { return };
        let nice: Vec<i32> = ran.stdout.split(' ').map(|nice| nice.parse().unwrap()).collect();
        assert_eq!(nice, [nice[0], (nice[0] + more).min(19), nice[0]]);
    }
}

/// Every function that glibc's malloc has, in a program that checks them, with one thread and with several, in
/// children and in theirs.
#[test]
fn the_bundled_malloc_has_the_whole_family() {
    let folder = Folder::new("family");
    let Some(program) = compile(&folder, "family") else { return };
    for malloc in ["auto", "keep"] {
        let (ran, _) = under_cowslip(&["--malloc", malloc], &[program.as_os_str()]);
        assert!(ran.status.success(), "--malloc {malloc}: {:?}: {}", ran.status, ran.stderr);
    }
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
    // Its locks are on ten pages an arena, and the other thread's has some too.
    assert!(alone + 10 <= after_another, "{alone} pages, {after_another} after another thread");
}
