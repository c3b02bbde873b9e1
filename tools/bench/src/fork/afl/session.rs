//! One session of `afl-fuzz`, and the edges of given inputs by `afl-showmap`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result, during};
use crate::interrupt::Interrupt;
use crate::program::{Folder, Launch};

/// Time limit of a test case (ms): a busy machine is no hang.
const TIMEOUT_MS: &str = "10000";
/// Time limit of loading (ms).
const LOAD_TIMEOUT_MS: &str = "300000";
/// Settings that keep AFL++ from asking for changes to the system, and from painting.
const SETTINGS: [&str; 5] = [
    "AFL_SKIP_CPUFREQ",
    "AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES",
    "AFL_NO_AFFINITY",
    "AFL_NO_UI",
    "AFL_QUIET",
];

/// Memory of the database when edges are compared, in MiB.
pub(super) const EDGES_MIB: u64 = 64;
/// The one block that SQLite takes all its memory from then: it keeps a page of 4 KiB in 8 KiB.
const POOL_MIB: u64 = 4 * EDGES_MIB;

/// A program that is fuzzed on memory of `mib`, in each way to run it.
pub(super) struct Target<'a> {
    pub(super) folder: &'a Folder,
    pub(super) program: &'a Path,
    pub(super) mib: u64,
}

/// Numbers from AFL++'s `fuzzer_stats`.
pub(super) struct Session {
    pub(super) execs_per_second: f64,
    pub(super) edges: f64,
    pub(super) crashes_and_hangs: f64,
    /// The inputs that it kept.
    pub(super) queue: PathBuf,
}

/// The edges that each input took, as `id:count`.
pub(super) type Edges = BTreeMap<OsString, BTreeSet<String>>;

impl Target<'_> {
    /// Fuzzes from the inputs in `seeds` for `seconds`. The seed of its random numbers is always the same.
    pub(super) fn fuzz(
        &self,
        launch: Launch,
        seeds: &Path,
        seconds: u32,
        stop: &Interrupt,
    ) -> Result<Session> {
        let out = self.folder.path().join(format!("session {}", launch.label()));
        let _ = fs::remove_dir_all(&out);
        let mut command = self.command("afl-fuzz", launch)?;
        command.args(["-s", "1", "-V", &seconds.to_string(), "-i"]).arg(seeds).arg("-o").arg(&out);
        command.arg("--").arg(self.program).arg(self.mib.to_string());
        self.folder.finish(&mut command, stop)?;
        let stats = out.join("default/fuzzer_stats");
        let stats = fs::read_to_string(&stats).map_err(during("read fuzzer_stats"))?;
        let value = |name| {
            let missing = || Error::Failed(format!("afl-fuzz wrote no {name} into fuzzer_stats"));
            stat(&stats, name).ok_or_else(missing)
        };
        Ok(Session {
            execs_per_second: value("execs_per_sec")?,
            edges: value("edges_found")?,
            crashes_and_hangs: value("saved_crashes")? + value("saved_hangs")?,
            queue: out.join("default/queue"),
        })
    }

    /// Runs each input of the directory `corpus`, and returns its edges.
    pub(super) fn edges(&self, launch: Launch, corpus: &Path, stop: &Interrupt) -> Result<Edges> {
        let out = self.folder.path().join(format!("edges {}", launch.label()));
        let mut command = self.command("afl-showmap", launch)?;
        command.arg("-i").arg(corpus).arg("-o").arg(&out).arg("--").arg(self.program);
        command.args([EDGES_MIB, POOL_MIB].map(|mib| mib.to_string()));
        self.folder.finish(&mut command, stop)?;
        let files = fs::read_dir(&out).map_err(during("read what afl-showmap wrote"))?;
        let maps = files.map(|file| {
            let file = file?;
            let map = fs::read_to_string(file.path())?;
            Ok((file.file_name(), map.lines().map(str::to_owned).collect()))
        });
        maps.collect::<std::io::Result<_>>().map_err(during("read what afl-showmap wrote"))
    }

    fn command(&self, tool: &str, launch: Launch) -> Result<Command> {
        let mut command = Command::new(tool);
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_for_afl(name)) {
            command.env_remove(name);
        }
        command.envs(SETTINGS.map(|name| (name, "1")));
        command.env("AFL_FORKSRV_INIT_TMOUT", LOAD_TIMEOUT_MS);
        let preload = launch.preload()?;
        if !preload.is_empty() {
            command.env("AFL_PRELOAD", preload);
        }
        command.envs(launch.environment().iter().copied());
        command.args(["-m", "none", "-t", TIMEOUT_MS]);
        Ok(command)
    }
}

fn is_for_afl(name: &OsString) -> bool {
    name.as_encoded_bytes().starts_with(b"AFL_")
}

/// The number in the line `name : number`.
fn stat(stats: &str, name: &str) -> Option<f64> {
    let mut lines = stats.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(found, _)| found.trim() == name)?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_fuzzer_stats() {
        let stats = "execs_done        : 32811\nexecs_per_sec     : 1640.14\n";
        assert_eq!(stat(stats, "execs_per_sec"), Some(1640.14));
        assert_eq!(stat(stats, "execs"), None);
    }
}
