//! How long fork holds a small program up, and what its child's page tables weigh, by the size of its memory.
//!
//! The program is C, has its memory from malloc, and forks by `fork(2)`: as it is, with the bundled malloc
//! alone, and under `cowslip run`. What is measured is what it pays until `fork` returns to the parent; a child does
//! the same in each. *first* is a fork of memory that was written since the last child ended; *again* one
//! while earlier children live and little was written; *in a row* one of many such whose children end at once,
//! as a fork server's with nothing to do would. With no memory at all it is the floor, natively and under
//! Cowslip. The rivals take turns, each time with a new process.

use cowslip_report::{Report, Row};

use super::{Bench, GIB, MIB, Options};
use crate::error::{Error, Result};
use crate::program::{Folder, Way};
use crate::rows::{median, push_durations};

pub(super) const METRIC: &str = "fork";
pub(super) const IN_A_ROW: &str = "in a row";
pub(super) const CHILD_TABLES: &str = "child_vmpte";

const SOURCE: &str = include_str!("forks.c");
const NEEDS: &str = "apt-get install gcc libc6-dev";
const SIZES: [u64; 9] =
    [0, 2 * MIB, 64 * MIB, 256 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB, 8 * GIB];
/// Processes of each rival.
const ROUNDS: usize = 5;
const ROUNDS_ABOVE_1_GIB: usize = 2;

/// How a program is run, and what it asks the kernel for.
#[derive(Clone, Copy)]
struct Rival {
    name: &'static str,
    way: Way,
    pages: &'static str,
}

const RIVALS: [Rival; 4] = [
    Rival { name: "fork-4k", way: Way::Stock, pages: "4k" },
    Rival { name: "cowslip", way: Way::Cowslip, pages: "any" },
    Rival { name: "fork-thp", way: Way::Stock, pages: "thp" },
    Rival { name: "fork-4k", way: Way::WithMalloc, pages: "4k" },
];

/// What the program prints, and the variant that it is of forks.
const FORKS: [(&str, &str); 3] = [("first", "first"), ("again", "again"), ("row", IN_A_ROW)];
/// What it prints of a child, and the metric that each is.
const WEIGHTS: [(&str, &str); 2] = [("vmpte", CHILD_TABLES), ("vmrss", "child_vmrss")];

/// Words with numbers, as the program printed them.
type Printed = Vec<(String, f64)>;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let folder = Folder::new("forks")?;
    let program = folder.compile("forks", SOURCE, &[], NEEDS, bench.stop);
    for size in SIZES.into_iter().filter(|&size| size <= options.size.0) {
        let rounds = if size > GIB { ROUNDS_ABOVE_1_GIB } else { ROUNDS };
        let mut logs: [Result<Printed>; RIVALS.len()] = [const { Ok(Vec::new()) }; _];
        bench.progress.phase(&format!("fork of a small program with {} MiB", size / MIB));
        for round in 0..rounds {
            bench.progress.set(round as u64, rounds as u64);
            for (rival, log) in RIVALS.iter().zip(&mut logs) {
                let Ok(values) = log else { continue };
                let printed = program.as_ref().map_err(Error::clone).and_then(|program| {
                    let mut command = rival.way.command(program, bench.libraries)?;
                    command.args([&(size / MIB).to_string(), rival.pages]);
                    parse(&folder.finish(&mut command, bench.stop)?)
                });
                match printed {
                    Ok(printed) => values.extend(printed),
                    Err(error @ Error::Failed(_)) => *log = Err(error),
                    Err(error) => return Err(error),
                }
            }
        }
        for (rival, log) in RIVALS.iter().zip(logs) {
            push(bench.report, rival, size, log);
        }
    }
    Ok(())
}

fn push(report: &mut Report, rival: &Rival, size: u64, log: Result<Printed>) {
    let named = |name: &str| match rival.way.variant() {
        Some(variant) => format!("{name}, {variant}"),
        None => name.to_owned(),
    };
    let values = match log {
        Ok(values) => values,
        Err(error) => {
            let row = Row::skipped(rival.name, METRIC, error.to_string());
            return report.row(row.size_bytes(size).variant(rival.way.variant()));
        }
    };
    let of = |word| -> Vec<f64> {
        values.iter().filter(|(printed, _)| printed == word).map(|(_, value)| *value).collect()
    };
    for (word, variant) in FORKS {
        let row = Row::new(rival.name, METRIC, "", 0.0, "ns").size_bytes(size);
        push_durations(report, &row.variant(named(variant).as_str()), &of(word));
    }
    for (word, metric) in WEIGHTS {
        if let Some(bytes) = median(&of(word)) {
            let row = Row::new(rival.name, metric, "value", bytes, "bytes");
            report.row(row.size_bytes(size).variant(rival.way.variant()));
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

/// Seed 002's figures: QEMU, x86_64 default configuration.
pub(super) fn push_published(report: &mut Report) {
    let row = |metric, variant, value, unit, size| {
        Row::new("seed-002", metric, "value", value, unit).size_bytes(size).variant(variant)
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
