//! The fuzzed program: our harness with SQLite, both with AFL++'s instrumentation.

use std::path::PathBuf;
use std::process::Command;

use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::program::Folder;

const HARNESS: &str = include_str!("harness.c");
const SQLITE: &str = include_str!("sqlite_source.sh");
const NEEDS: &str = "apt-get install afl++ libsqlite3-dev";

/// Builds the program. Returns it with a caveat if there is one.
pub(super) fn build(folder: &Folder, stop: &Interrupt) -> Result<(PathBuf, Option<String>)> {
    let harness = folder.write("harness.c", HARNESS)?;
    let program = folder.path().join("harness");
    let mut cc = Command::new("afl-cc");
    cc.env("AFL_QUIET", "1").args(["-w", "-O2", "-o"]).args([&program, &harness]);
    let caveat = match source(folder, stop) {
        Ok(sqlite) => {
            cc.args(["-DSQLITE_THREADSAFE=0", "-DSQLITE_OMIT_LOAD_EXTENSION"]);
            cc.args(["-DSQLITE_ENABLE_MEMSYS5", "-I"]).arg(folder.path()).arg(sqlite).arg("-lm");
            None
        }
        Err(Error::Failed(why)) => {
            cc.arg("-lsqlite3");
            Some(format!("afl: SQLite itself has no edges, as its source could not be had: {why}"))
        }
        Err(error) => return Err(error),
    };
    match folder.finish(&mut cc, stop) {
        Err(Error::Failed(why)) => Err(Error::Failed(format!("{why}; {NEEDS}"))),
        done => done.map(|_| (program, caveat)),
    }
}

/// All of SQLite in one file.
fn source(folder: &Folder, stop: &Interrupt) -> Result<PathBuf> {
    let script = folder.write("sqlite_source.sh", SQLITE)?;
    folder.finish(Command::new("sh").arg(script).arg(folder.path()), stop)?;
    Ok(folder.path().join("sqlite3.c"))
}
