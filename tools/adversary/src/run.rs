//! One program, run in one way, to its end or its limit.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::hang;
use crate::perform::stops::REFUSED;
use crate::program::Program;
use crate::shared::{Mapped, Totals};

/// A way to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Mode {
    /// Not under Cowslip.
    Native,
    /// With userfaultfd.
    Uffd,
    /// Without it.
    Plain,
    /// By a user without privileges.
    User,
    /// With userfaultfd, and a library in front of malloc that passes its calls on.
    Interposed,
}

impl Mode {
    pub(crate) const ALL: [Self; 5] =
        [Self::Native, Self::Uffd, Self::Plain, Self::User, Self::Interposed];

    pub(crate) fn name(self) -> &'static str {
        ["native", "uffd", "plain", "user", "interposed"][self as usize]
    }

    pub(crate) fn has_userfaultfd(self) -> bool {
        matches!(self, Self::Uffd | Self::Interposed)
    }
}

const NOBODY: u32 = 65534;

/// Counts of a run, and those in Cowslip's report.
#[derive(Clone, Default)]
pub(crate) struct Done {
    pub(crate) calls: u64,
    pub(crate) forks: u64,
    pub(crate) processes: u64,
    pub(crate) pages: u64,
    pub(crate) refused: u64,
    pub(crate) freezes: u64,
    pub(crate) thaws: u64,
    pub(crate) has_userfaultfd: bool,
    pub(crate) failure: Option<String>,
}

/// The place where programs run: the binaries, and a folder that every user may write to.
pub(crate) struct Place {
    pub(crate) program: PathBuf,
    pub(crate) cowslip: PathBuf,
    pub(crate) folder: PathBuf,
    /// The library of [`Mode::Interposed`].
    pub(crate) interposer: PathBuf,
}

impl Place {
    /// A folder for one of several simultaneous runs.
    pub(crate) fn folder(&self, job: usize) -> std::io::Result<PathBuf> {
        let folder = self.folder.join(job.to_string());
        std::fs::create_dir_all(&folder)?;
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&folder, all)?;
        Ok(folder)
    }

    fn command(&self, program: &Program, mode: Mode, folder: &Path) -> Command {
        let mut command = if mode == Mode::Native {
            Command::new(&self.program)
        } else {
            let mut command = Command::new(&self.cowslip);
            // The programs are small, and most should be completely in an arena.
            command.args(["run", "--arena-after=0"]).args(&program.options);
            // Without userfaultfd or huge pages, there is an arena only on request.
            command
                .args(matches!(mode, Mode::Plain | Mode::User).then_some("--without-userfaultfd"));
            command.args((mode == Mode::User).then_some("--backing=base"));
            command.arg("--").arg(&self.program);
            command.env("COWSLIP_REPORT", folder.join("report"));
            if mode == Mode::Interposed {
                command.env("LD_PRELOAD", &self.interposer);
            }
            command
        };
        command.arg("perform").arg(folder).args((mode != Mode::Native).then_some("--causal"));
        if mode == Mode::User && is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Runs a program, and collects all of its processes.
    pub(crate) fn run(
        &self,
        program: &Program,
        mode: Mode,
        job: usize,
        limit: Duration,
    ) -> std::io::Result<Done> {
        let folder = self.folder(job)?;
        for entry in std::fs::read_dir(&folder)? {
            std::fs::remove_file(entry?.path())?;
        }
        std::fs::write(folder.join("program"), program.to_string())?;
        let shared = Mapped::new(&folder.join("shared"))?;
        let errors = std::fs::File::create(folder.join("errors"))?;
        let mut command = self.command(program, mode, &folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).process_group(0);
        let root = command.spawn()?.id() as i32;
        let until = Instant::now() + limit;
        let mut failure = None;
        let mut is_failing = false;
        loop {
            match ended(root) {
                Ended::All => break,
                Ended::One(pid, status) => {
                    // A child may be killed by its parent, which may have left. A stopper of that one may have been refused.
                    let is_of_child = [libc::SIGKILL, i32::from(REFUSED) << 8].contains(&status);
                    let may_be = status == 0 || (is_of_child && pid != root);
                    if !may_be && !is_failing {
                        failure.get_or_insert(format!(
                            "{} ended with wait status {status:#x}",
                            place(pid, root)
                        ));
                    }
                }
                Ended::None if shared.has_failed() && !is_failing => {
                    // The process that saw it reports it at once; the others are not waited for.
                    std::thread::sleep(Duration::from_millis(20));
                    is_failing = true;
                    end(root);
                }
                Ended::None if Instant::now() > until && !is_failing => {
                    let where_ = hang::describe(root, program, &shared);
                    failure.get_or_insert(format!("it hangs:\n{where_}"));
                    is_failing = true;
                    end(root);
                }
                Ended::None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        let said = shared.failure();
        let stderr = std::fs::read_to_string(folder.join("errors")).unwrap_or_default();
        let failure = said.or_else(|| failure.map(|text| format!("{text}\n{stderr}")));
        Ok(done(&shared.totals, &folder.join("report"), failure))
    }
}

fn place(pid: i32, root: i32) -> &'static str {
    if pid == root { "process 0" } else { "a process whose parent had ended" }
}

fn done(totals: &Totals, report: &Path, failure: Option<String>) -> Done {
    let report = std::fs::read_to_string(report).unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap_or_default();
    Done {
        calls: totals.calls.load(Relaxed),
        forks: totals.forks.load(Relaxed),
        processes: totals.processes.load(Relaxed),
        pages: totals.pages.load(Relaxed),
        refused: totals.refused.load(Relaxed),
        freezes: report["freezes"].as_u64().unwrap_or(0),
        thaws: report["thaws"].as_u64().unwrap_or(0),
        has_userfaultfd: report["has_userfaultfd"].as_u64() == Some(1),
        failure,
    }
}

enum Ended {
    All,
    One(i32, i32),
    None,
}

/// Collects a process of the group. Orphans are the driver's children: it is a subreaper.
fn ended(group: i32) -> Ended {
    let mut status = 0;
    // SAFETY: the pointer is to `status`.
    match unsafe { libc::waitpid(-group, &mut status, libc::WNOHANG) } {
        0 => Ended::None,
        -1 => Ended::All,
        pid => Ended::One(pid, status),
    }
}

fn end(group: i32) {
    // SAFETY: the group was started by this process, and has not been collected.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}

pub(crate) fn is_root() -> bool {
    // SAFETY: it takes no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// Makes orphans of programs children of this process.
pub(crate) fn collect_orphans() {
    // SAFETY: the arguments are numbers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}
