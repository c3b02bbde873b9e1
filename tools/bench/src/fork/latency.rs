//! Time that fork holds a small program up, and memory of its child's page tables, by the size of its memory.
//!
//! The program is C, has its memory from malloc, and forks by `fork(2)`: as it is, with the bundled malloc alone, and
//! under `cowslip run`. The time is measured until `fork` returns to the parent; a child does the same in each. *start*
//! is the first fork since the program started, when all of its memory is still as the kernel made it; *first* is a
//! fork of memory that was written since the last child ended; *again* one while earlier children live and little was
//! written; *in a row* one of many such forks with children that end at once, like those of a fork server with nothing
//! to do. A program with no memory at all is the floor, natively and under Cowslip. They take turns, each time with a
//! new process.

use std::path::PathBuf;

use crate::report::{Report, Row};

use super::{Bench, GIB, MIB, Options};
use crate::clock::Rounds;
use crate::error::{Error, Result};
use crate::host::note_warmed;
use crate::program::{Folder, Launch};
use crate::rows::{median, push_durations};

pub(super) const METRIC: &str = "fork";
/// Fork of a program without memory.
pub(super) const EMPTY: &str = "fork_empty_program";
pub(super) const START: &str = "start";
pub(super) const FIRST: &str = "first";
pub(super) const IN_A_ROW: &str = "in a row";
pub(super) const CHILD_TABLES: &str = "child_vmpte";

const SOURCE: &str = include_str!("forks.c");
const NEEDS: &str = "apt-get install gcc libc6-dev";
const ALL_SIZES: [u64; 9] =
    [0, 2 * MIB, 64 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB, 8 * GIB];
const SIZES: [u64; 3] = [0, GIB, 8 * GIB];
/// Processes of each setup.
const MOST_ROUNDS: u32 = 5;
const MOST_ROUNDS_ABOVE_1_GIB: u32 = 2;
const FORKS_IN_A_ROW: u32 = 100;
const FORKS_IN_A_ROW_ABOVE_1_GIB: u32 = 20;

/// A way to run a program, and the pages that it requests.
#[derive(Clone, Copy)]
struct Setup {
    name: &'static str,
    launch: Launch,
    pages: &'static str,
}

const SETUPS: [Setup; 4] = [
    Setup { name: "fork-4k", launch: Launch::Stock, pages: "4k" },
    Setup { name: "cowslip", launch: Launch::Cowslip, pages: "any" },
    Setup { name: "fork-thp", launch: Launch::Stock, pages: "thp" },
    Setup { name: "fork-4k", launch: Launch::WithMalloc, pages: "4k" },
];

/// Words that the program prints, and their variants.
const FORKS: [(&str, &str); 4] =
    [("start", START), ("first", FIRST), ("again", "again"), ("row", IN_A_ROW)];
/// Words that it prints for a child, and their metrics.
const WEIGHTS: [(&str, &str); 2] = [("vmpte", CHILD_TABLES), ("vmrss", "child_vmrss")];

/// Words with numbers, as the program printed them.
type Printed = Vec<(String, f64)>;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let folder = Folder::new("forks")?;
    let program = folder.compile("forks", SOURCE, &[], NEEDS, bench.stop);
    let all: &[u64] = if bench.clock.is_full() { &ALL_SIZES } else { &SIZES };
    let sizes: Vec<_> = all.iter().copied().filter(|&size| size <= options.size.0).collect();
    for (i, &size) in sizes.iter().enumerate() {
        let left: u64 = sizes[i..].iter().map(|&size| size + 64 * MIB).sum();
        let share = (size + 64 * MIB) as f64 / left as f64;
        let most = if size > GIB { MOST_ROUNDS_ABOVE_1_GIB } else { MOST_ROUNDS };
        let rounds = bench.clock.rounds(share, 1, most);
        bench.watched(|bench| measure_size(bench, &folder, &program, size, rounds))?;
    }
    Ok(())
}

fn measure_size(
    bench: &mut Bench<'_>,
    folder: &Folder,
    program: &Result<PathBuf>,
    size: u64,
    rounds: Rounds,
) -> Result<()> {
    let row = if size > GIB { FORKS_IN_A_ROW_ABOVE_1_GIB } else { FORKS_IN_A_ROW };
    // The bundled malloc has no effect on large memory.
    let is_full = bench.clock.is_full();
    let is_measured = |setup: &&Setup| is_full || size <= GIB || setup.launch != Launch::WithMalloc;
    let setups: Vec<&Setup> = SETUPS.iter().filter(is_measured).collect();
    let mut logs: Vec<Result<Printed>> = setups.iter().map(|_| Ok(Vec::new())).collect();
    for round in rounds {
        for (setup, log) in setups.iter().zip(&mut logs) {
            let Ok(values) = log else { continue };
            let (mib, round, name) = (size / MIB, round + 1, setup.name);
            bench.progress.phase(&format!(
                "fork of a small program with {mib} MiB, round {round}: {name}, {}",
                setup.pages
            ));
            let printed = program.as_ref().map_err(Error::clone).and_then(|program| {
                let mut command = setup.launch.command(program)?;
                command.args([&mib.to_string(), setup.pages, &row.to_string()]);
                parse(&folder.finish(&mut command, bench.stop)?)
            });
            match printed {
                Ok(printed) => {
                    let touched = printed.iter().filter(|(word, _)| word == "touch");
                    touched.for_each(|(_, ns)| note_warmed(*ns));
                    values.extend(printed);
                }
                Err(error @ Error::Failed(_)) => *log = Err(error),
                Err(error) => return Err(error),
            }
        }
    }
    for (setup, log) in setups.into_iter().zip(logs) {
        push(bench.report, setup, size, log);
    }
    Ok(())
}

fn push(report: &mut Report, setup: &Setup, size: u64, log: Result<Printed>) {
    let (metric, size_bytes) = if size == 0 { (EMPTY, None) } else { (METRIC, Some(size)) };
    let named = |name: &str| match setup.launch.variant() {
        Some(variant) => format!("{name}, {variant}"),
        None => name.to_owned(),
    };
    let values = match log {
        Ok(values) => values,
        Err(error) => {
            let row = Row::skipped(setup.name, metric, error.to_string());
            return report.row(row.size_bytes(size_bytes).variant(setup.launch.variant()));
        }
    };
    let of = |word| -> Vec<f64> {
        values.iter().filter(|(printed, _)| printed == word).map(|(_, value)| *value).collect()
    };
    for (word, variant) in FORKS {
        let row = Row::new(setup.name, metric, "", 0.0, "ns").size_bytes(size_bytes);
        push_durations(report, &row.variant(named(variant).as_str()), &of(word));
    }
    for (word, metric) in WEIGHTS {
        if let Some(bytes) = median(&of(word)) {
            let row = Row::new(setup.name, metric, "value", bytes, "bytes");
            report.row(row.size_bytes(size_bytes).variant(setup.launch.variant()));
        }
    }
}

fn parse(printed: &str) -> Result<Printed> {
    let line = |line: &str| {
        let (word, number) = line.split_once(' ')?;
        Some((word.to_owned(), number.parse().ok()?))
    };
    let lines = printed.lines().map(line).collect::<Option<Vec<_>>>();
    let lines = lines.filter(|lines| !lines.is_empty());
    lines.ok_or_else(|| Error::Failed(format!("the program printed {printed:?}")))
}

/// Lin 2022's figures (see [`super`]): QEMU, x86_64 default configuration.
pub(super) fn push_published(report: &mut Report) {
    let row = |metric, variant, value, unit, size| {
        Row::new("Lin 2022", metric, "value", value, unit).size_bytes(size).variant(variant)
    };
    for (variant, ms, child_kib) in [("fork", 10.0, 2096.0), ("COW PTE", 0.625, 44.0)] {
        report.row(row(METRIC, variant, ms * 1e6, "ns", 512 * MIB));
        report.row(row(CHILD_TABLES, variant, child_kib * 1024.0, "bytes", GIB));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_forks() {
        let lines = parse("first 120\nrow 30\n").unwrap();
        assert_eq!(lines, [("first".to_owned(), 120.0), ("row".to_owned(), 30.0)]);
        assert!(parse("first\n").is_err());
        assert!(parse("row many\n").is_err());
        assert!(parse("").is_err());
    }
}
