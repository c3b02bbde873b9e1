//! Memory of a parent and its children: page tables and private memory, for 1, 10 and 100 children.
//!
//! The program is C and forks by `fork(2)`: each setup has a process, and so a weight, of its own. VmRSS excludes
//! unmapped memory; under Cowslip that is memory untouched since the last fork.

use crate::report::Row;

use super::{Bench, MIB, Options};
use crate::error::{Error, Result};
use crate::program::{Folder, Launch};

const SOURCE: &str = include_str!("children.c");
const NEEDS: &str = "apt-get install gcc libc6-dev";
/// A name, the way to run its program, and the pages that it requests.
const SETUPS: [(&str, Launch, &str); 3] = [
    ("fork-4k", Launch::Stock, "4k"),
    ("fork-thp", Launch::Stock, "thp"),
    ("cowslip", Launch::Cowslip, "any"),
];
/// The children's work, and pages that each writes, spread over the memory.
const WORK: [(&str, &str); 2] = [("idle", "0"), ("writing", "100")];
/// The numbers that the program prints behind the number of children, in bytes.
const METRICS: [&str; 4] = ["parent_vmrss", "parent_vmpte", "children_vmpte", "children_private"];

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let folder = Folder::new("weight")?;
    let program = folder.compile("children", SOURCE, &[], NEEDS, bench.stop);
    for (name, launch, pages) in SETUPS {
        bench.progress.phase(&format!("weight of 1, 10 and 100 children: {name}"));
        for (work, written) in WORK {
            let lines = program.as_ref().map_err(Error::clone).and_then(|program| {
                let mut command = launch.command(program)?;
                command.args([&(bytes / MIB).to_string(), pages, written]);
                parse(&folder.finish(&mut command, bench.stop)?)
            });
            match lines {
                Ok(lines) => {
                    for (children, weights) in lines {
                        let variant = format!("{children} {work}");
                        for (metric, weight) in METRICS.into_iter().zip(weights) {
                            let row = Row::new(name, metric, "value", weight, "bytes");
                            bench.report.row(row.size_bytes(bytes).variant(variant.as_str()));
                        }
                    }
                }
                Err(Error::Failed(why)) => {
                    for metric in METRICS {
                        let row = Row::skipped(name, metric, why.as_str());
                        bench.report.row(row.size_bytes(bytes).variant(work));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

type Weights = [f64; METRICS.len()];

/// Parses lines of numbers: the number of children, and the weights.
fn parse(printed: &str) -> Result<Vec<(u64, Weights)>> {
    let line = |line: &str| {
        let (children, weights) = line.split_once(' ')?;
        let weights: Vec<f64> =
            weights.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
        Some((children.parse().ok()?, weights.try_into().ok()?))
    };
    let lines = printed.lines().map(line).collect::<Option<Vec<_>>>();
    let lines = lines.filter(|lines| !lines.is_empty());
    lines.ok_or_else(|| Error::Failed(format!("the program printed {printed:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_weights() {
        let lines = parse("1 10 20 30 40\n10 1 2 3 4\n").unwrap();
        assert_eq!(lines[1], (10, [1.0, 2.0, 3.0, 4.0]));
        assert!(parse("1 10 20\n").is_err());
        assert!(parse("").is_err());
    }
}
