//! A fork server over a real SQLite database in memory: children a second.
//!
//! The program is C and knows nothing of Cowslip: it is compiled here, with the system's SQLite, and run
//! as it is, on huge pages, with the bundled malloc alone, and under `cowslip run`. Each child's answers are checked.

use crate::report::Row;
use cowslip::units::ByteCount;

use super::{Bench, MIB, Options};
use crate::error::{Error, Result};
use crate::host::warm;
use crate::program::{Folder, Launch};

pub(super) const METRIC: &str = "sqlite_fork_server_execs";
const SOURCE: &str = include_str!("sqlite_fork_server.c");
const SECONDS: &str = "3";
/// Free memory that children may take: page tables, and written pages.
const CHILDREN: ByteCount = ByteCount::mib(256);
const NEEDS: &str = "apt-get install gcc libsqlite3-dev";
const LAUNCHES: [Launch; 4] =
    [Launch::Stock, Launch::StockThp, Launch::WithMalloc, Launch::Cowslip];

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let folder = Folder::new("sqlite")?;
    let program = folder.compile("fork_server", SOURCE, &["-lsqlite3"], NEEDS, bench.stop);
    for launch in LAUNCHES {
        bench.progress.phase(&format!("SQLite fork server: {}", launch.label()));
        let rate = program.as_ref().map_err(Error::clone).and_then(|program| {
            warm(CHILDREN, bench.stop)?;
            let mut command = launch.command(program)?;
            let printed =
                folder.finish(command.args([&(bytes / MIB).to_string(), SECONDS]), bench.stop)?;
            parse(&printed)
        });
        let row = match rate {
            Ok((children, seconds)) => {
                Row::new(launch.name(), METRIC, "value", children as f64 / seconds, "1/s")
                    .n(children)
            }
            Err(Error::Failed(why)) => Row::skipped(launch.name(), METRIC, why),
            Err(error) => return Err(error),
        };
        bench.report.row(row.size_bytes(bytes).variant(launch.variant()));
    }
    Ok(())
}

/// The number of children, and the seconds for all of them.
fn parse(printed: &str) -> Result<(u64, f64)> {
    let words = printed.trim().split_once(' ');
    let numbers = words.and_then(|(n, s)| Some((n.parse().ok()?, s.parse().ok()?)));
    numbers.ok_or_else(|| Error::Failed(format!("the fork server printed {printed:?}")))
}
