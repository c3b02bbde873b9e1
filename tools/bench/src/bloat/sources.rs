//! Overhead of the daemon for programs that gain little: a build of a part of Linux, and greps over its sources, in
//! turns with and without the daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::daemon::Daemon;
use super::group::Group;
use super::job::differing;
use super::overhead::{CPU, SLOWDOWN};
use super::settings::{Settings, System};
use super::target::children_ns;
use super::{BYTES_CHANGED, Bench, Result};
use crate::error::Error;
use crate::program::Folder;
use crate::report::Row;
use crate::rows::{median, median_bounds};

const NEEDS: &str = "apt-get install linux-source gcc make flex bison bc xz-utils";
/// Sources of drivers and of other processors, which the smallest configuration leaves out.
const LEFT_OUT: [&str; 5] = [
    "*/drivers/*.[ch]",
    "*/sound/*.[ch]",
    "*/arch/[!Kx]*/*.*",
    "*/Documentation/*/*",
    "*/tools/testing/*",
];
const LEAST_PAIRS: u32 = 3;
const MOST_PAIRS: u32 = 15;
/// A few looks a turn.
const LOOKS: &str = "interval_ms = 1000\nsettle_ms = 1000\n";

/// Work on the sources.
pub(super) struct Work {
    pub(super) name: &'static str,
    /// Prepares the sources.
    first: &'static str,
    /// One turn, which prints a checksum of its result.
    turn: &'static str,
}

pub(super) const BUILD: Work = Work {
    name: "kernel build",
    first: "make -s tinyconfig prepare",
    turn: "find mm -name '*.o' -delete && make -s -j2 mm/ && \
           find mm -name '*.o' | LC_ALL=C sort | xargs cksum",
};
pub(super) const GREP: Work = Work {
    name: "grep",
    first: "true",
    // Long enough for the clock of processor time.
    turn: "for round in 1 2 3 4; do for word in 'huge page' 'collapse' 'TLB.*flush' '[a-z]*_pte'; do \
           LC_ALL=C grep -rI \"$word\" . ; done; done | cksum",
};

pub(super) fn measure(bench: &mut Bench<'_>, work: &Work, system: &System) -> Result<()> {
    let (name, stop) = (work.name, bench.stop);
    system.set(&Settings::ON_REQUEST)?;
    let folder = Folder::new("bloat-sources")?;
    bench.progress.phase(&format!("{name}: unpacking the sources of Linux"));
    let finish = |command: &mut Command| folder.finish(command, stop).map_err(needs);
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(packed()?).arg("-C").arg(folder.path()).arg("--strip-components=1");
    finish(tar.args(LEFT_OUT.map(|pattern| format!("--exclude={pattern}"))))?;
    let group = Group::new()?;
    let shell = |text: &str| {
        let mut command = group.command("sh");
        command.args(["-c", text]).current_dir(folder.path());
        command
    };
    finish(&mut shell(work.first))?;
    let directory = group.directory().display().to_string();
    let daemon = Daemon::start(&[], &["--cgroup", &directory], LOOKS)?;
    let expected = finish(&mut shell(work.turn))?;
    let (mut ratios, mut shares) = (Vec::new(), Vec::new());
    let mut changed_bytes = 0;
    // Nanoseconds of all processors, the daemon's included.
    let mut turn = |is_with: bool| -> Result<f64> {
        daemon.stop(!is_with)?;
        let (before, of_daemon, began) = (children_ns()?, daemon.cpu_ns()?, Instant::now());
        let said = finish(&mut shell(work.turn));
        let of_daemon = daemon.cpu_ns()? - of_daemon;
        // Resumes the daemon even after a failure: a stopped process cannot be asked to end.
        daemon.stop(false)?;
        changed_bytes += differing(expected.as_bytes(), said?.as_bytes());
        if is_with {
            shares.push(of_daemon as f64 / began.elapsed().as_nanos() as f64);
        }
        Ok((children_ns()? - before + of_daemon) as f64)
    };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for pair in bench.clock.rounds(1.0, LEAST_PAIRS, MOST_PAIRS) {
        bench.progress.phase(&format!("{name}: with and without the daemon, pair {}", pair + 1));
        // The order alternates, which spreads a drift of the machine's speed over both.
        let is_first = pair % 2 == 0;
        let (first, second) = (turn(is_first)?, turn(!is_first)?);
        let (on, off) = if is_first { (first, second) } else { (second, first) };
        with.push(on);
        without.push(off);
        ratios.push(on / off);
    }
    daemon.end(stop)?;
    let (low, high) = median_bounds(&ratios).unzip();
    let values = [
        ("cowslip", "cpu_time", "p50", median(&with), "ns"),
        ("thp-madvise", "cpu_time", "p50", median(&without), "ns"),
        ("cowslip", CPU, "value", median(&shares), "ratio"),
        ("cowslip", SLOWDOWN, "p50", median(&ratios), "ratio"),
        ("cowslip", SLOWDOWN, "p50_ci95_low", low, "ratio"),
        ("cowslip", SLOWDOWN, "p50_ci95_high", high, "ratio"),
        ("cowslip", BYTES_CHANGED, "value", Some(changed_bytes as f64), "bytes"),
    ];
    for (system, metric, stat, value, unit) in values {
        let Some(value) = value else { continue };
        let row = Row::new(system, metric, stat, value, unit).variant(name);
        bench.report.row(row.n(ratios.len() as u64));
    }
    bench.report.notes.push(format!(
        "{name}: processor time of all programs, and with the daemon also its own; each program in their group is a \
         target"
    ));
    system.set(&Settings::NEVER)
}

fn needs(error: Error) -> Error {
    match error {
        Error::Failed(why) => Error::Failed(format!("{why}; {NEEDS}")),
        other => other,
    }
}

/// Debian's archive of the sources, the newest one.
fn packed() -> Result<PathBuf> {
    let entries = fs::read_dir("/usr/src").into_iter().flatten().flatten();
    let is_it = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("linux-source-") && name.ends_with(".tar.xz")
    };
    let found = entries.map(|entry| entry.path()).filter(|path| is_it(path)).max();
    found.ok_or_else(|| needs(Error::Failed("/usr/src has no sources of Linux".to_owned())))
}
