//! A fork server over a real SQLite database in memory: children a second.
//!
//! The program is C and knows nothing of Cowslip: it is compiled here, with the system's SQLite, and run
//! as it is, with the bundled malloc alone, and under `cowslip run`. Each child's answers are checked.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Bench, MIB, Options};
use crate::bench::error::{Error, Result, during};
use crate::commands::run::{MALLOC, library};
use crate::output::report::Row;

pub(super) const METRIC: &str = "sqlite_fork_server_execs";
const SOURCE: &str = include_str!("sqlite_fork_server.c");
const SECONDS: &str = "4";
const NEEDS: &str = "apt-get install gcc libsqlite3-dev";

/// Who runs it, and how.
const RIVALS: [(&str, Option<&str>, Way); 3] = [
    ("fork-4k", None, Way::Stock),
    ("fork-4k", Some("jemalloc"), Way::WithMalloc),
    ("cowslip", None, Way::Cowslip),
];

#[derive(Clone, Copy)]
enum Way {
    Stock,
    WithMalloc,
    Cowslip,
}

/// A directory that goes with this value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let folder = std::env::temp_dir().join(format!("cowslip-sqlite-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(during("make a directory"))?;
    let folder = Folder(folder);
    let program = match compile(&folder.0) {
        Ok(program) => program,
        Err(why) => {
            for (rival, variant, _) in RIVALS {
                let row = Row::skipped(rival, METRIC, why.as_str());
                bench.report.row(row.size_bytes(bytes).variant(variant));
            }
            return Ok(());
        }
    };
    for (rival, variant, way) in RIVALS {
        bench.stop.check()?;
        let name = variant.map_or(rival.to_owned(), |variant| format!("{rival} {variant}"));
        bench.progress.phase(&format!("SQLite fork server: {name}"));
        let row = match run(&program, way, bytes / MIB) {
            Ok((children, seconds)) => {
                let rate = children as f64 / seconds;
                Row::new(rival, METRIC, "value", rate, "1/s").n(children)
            }
            Err(Error::Failed(why)) => Row::skipped(rival, METRIC, why),
            Err(error) => return Err(error),
        };
        bench.report.row(row.size_bytes(bytes).variant(variant));
    }
    Ok(())
}

/// The program, or why there is none.
fn compile(folder: &Path) -> std::result::Result<PathBuf, String> {
    let (source, program) = (folder.join("fork_server.c"), folder.join("fork_server"));
    fs::write(&source, SOURCE).map_err(|error| format!("cannot write the program: {error}"))?;
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-o"]).args([&program, &source]).arg("-lsqlite3");
    match cc.output() {
        Ok(output) if output.status.success() => Ok(program),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("cc: {}; {NEEDS}", said.lines().next().unwrap_or("it failed")))
        }
        Err(error) => Err(format!("cc: {error}; {NEEDS}")),
    }
}

/// Children, and the seconds they took together.
fn run(program: &Path, way: Way, mib: u64) -> Result<(u64, f64)> {
    let mut command = match way {
        Way::Stock | Way::WithMalloc => Command::new(program),
        Way::Cowslip => {
            let cowslip = std::env::current_exe().map_err(during("find this program"))?;
            let mut command = Command::new(cowslip);
            command.args([OsString::from("run"), "--".into()]).arg(program);
            command
        }
    };
    if let Way::WithMalloc = way {
        let library = library().map_err(|error| Error::Failed(error.to_string()))?;
        command.env("LD_PRELOAD", library.with_file_name(MALLOC));
    }
    let output = command.args([mib.to_string().as_str(), SECONDS]).output();
    let output = output.map_err(during("run the fork server"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let answer = said.trim().split_once(' ');
    let answer = answer.and_then(|(n, s)| Some((n.parse().ok()?, s.parse().ok()?)));
    match answer {
        Some((children, seconds)) if output.status.success() => Ok((children, seconds)),
        _ => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::Failed(format!("the fork server failed ({}): {why}", output.status)))
        }
    }
}
