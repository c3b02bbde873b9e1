//! A process, restored from its checkpoint, which runs before its memory is there, or once it is.
//!
//! ```text
//!  memory.image ──▶ [Memory] ──socket──▶ criu lazy-pages ──userfaultfd──▶ the process
//!                                          ▲ ready            criu restore ──▲
//! ```

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cowslip::image::{OnDamage, RestoreOptions};
use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::target::Target;
use cowslip_sys::{process, procfs};
use signal_hook::consts::{SIGCONT, SIGSTOP};

use crate::about::{self, About, ENCRYPTED_STATE, REST};
use crate::archive::Archive;
use crate::chain::Chain;
use crate::command::{Criu, failure, run_served};
use crate::keys::Keys;
use crate::memory::Memory;
use crate::private::PrivateFolder;
use crate::session::Served;

const OPERATION: &str = "restore a process";
const LAZY_LOG: &str = "lazy.log";

/// A process that was restored, with all its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoredProcess {
    /// Its number.
    pub pid: i32,
    /// The time until it ran.
    pub ran_after: Duration,
    /// Its memory, which came afterwards, or, with eager restores, before.
    pub served: Served,
}

/// A checkpoint that is open.
#[derive(Debug)]
pub struct Kept {
    about: About,
    rest: Rest,
    chain: Chain,
}

/// All but the memory.
#[derive(Debug)]
enum Rest {
    /// A folder of CRIU's files.
    Folder(PathBuf),
    /// An archive of them, and its path.
    Packed(PathBuf, Archive),
}

impl Kept {
    /// Opens the checkpoint in a folder, with the identities of `keys`. Its bases are looked for where they were, and
    /// then at `places`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the folder is no checkpoint, or damaged, or a base is missing; [`ErrorKind::Denied`] if
    /// no key opens it; the file system's.
    pub fn open(folder: &Path, keys: &Keys, places: &[PathBuf]) -> Result<Self> {
        let (about, rest) = match about::read(folder)? {
            Some(about) => (about, Rest::Folder(folder.join(REST))),
            None => {
                let path = folder.join(ENCRYPTED_STATE);
                let archive = Archive::decrypt(keys, &path)?;
                let about = About::from_text(&archive.process).map_err(|why| {
                    Error::new(ErrorKind::Corrupt, OPERATION).of_file(&path).because(why)
                });
                (about?, Rest::Packed(path, archive))
            }
        };
        let chain = Chain::open(folder, keys, places)?;
        Ok(Self { about, rest, chain })
    }

    pub(crate) fn of_archive(path: PathBuf, about: About, archive: Archive, chain: Chain) -> Self {
        Self { about, rest: Rest::Packed(path, archive), chain }
    }

    /// The process.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Begins to restore its memory.
    ///
    /// # Errors
    /// Those of [`Memory::restore`].
    pub fn into_memory(self, options: &RestoreOptions) -> Result<Memory> {
        Memory::of_chain(self.chain, options)
    }
}

/// Restores a process, calls `running` once it runs, and returns when all its memory is there. Signals must not end the
/// calling process before that: the process would lose what has not come yet. An eager restore has it run only then.
///
/// # Errors
/// [`ErrorKind::Busy`] if another process has its number, or that of a thread; [`ErrorKind::Corrupt`] if the checkpoint is
/// damaged; [`ErrorKind::Unsupported`] with CRIU's own words if it cannot restore it.
pub fn restore(
    kept: Kept,
    criu: &Path,
    is_eager: bool,
    tell: &(dyn Fn(&str) + Sync),
    running: impl FnOnce(i32),
) -> Result<RestoredProcess> {
    const FIRST: i32 = 1;
    let began = Instant::now();
    if process::pid() == FIRST {
        return Err(Error::new(ErrorKind::Usage, OPERATION)
            .because(
                "this is the first process of its PID namespace, whose end would end the other",
            )
            .advise("run it in a shell of that namespace"));
    }
    let Kept { about, rest, chain } = kept;
    let criu = Criu::find(criu)?;
    wait_free(&about.threads)?;
    let mut running = Some(running);
    let on_damage = OnDamage::new(|_, _| ());
    let options = RestoreOptions { on_damage: Some(on_damage), ..RestoreOptions::default() };
    let memory = Memory::of_chain(chain, &options)?;
    let (work, rest) = match rest {
        Rest::Folder(folder) => {
            // CRIU changes its folder.
            let rest = std::path::absolute(&folder);
            (PrivateFolder::create()?, rest.map_err(|error| file_error(OPERATION, &folder, error))?)
        }
        Rest::Packed(path, archive) => {
            let private = PrivateFolder::in_memory()?;
            let rest = private.path().join(REST);
            archive.unpack(&path, &rest)?;
            (private, rest)
        }
    };
    let mut lazy = criu.action("lazy-pages", &rest, work.path());
    lazy.args(["--log-file", LAZY_LOG, "--status-fd", "1"]);
    // Ctrl-C must not end it before the memory is there.
    lazy.stdout(Stdio::piped()).process_group(0);
    let served = run_served(&memory, &mut lazy, tell, |child| {
        let restored = wait_ready(child, work.path()).and_then(|()| {
            let mut command = criu.action("restore", &rest, work.path());
            if io::stdin().is_terminal() {
                command.stdin(Stdio::inherit());
            }
            command.args(["--restore-detached", "--lazy-pages", "--shell-job", "--file-locks"]);
            command.args(["--tcp-close", "--ext-unix-sk"]);
            if is_eager {
                command.arg("--leave-stopped");
            }
            criu.run(&mut command, work.path())
        });
        if restored.is_err() {
            let _ = child.kill();
        } else if !is_eager {
            running.take().expect("it is called once")(about.pid);
        }
        restored.map(|()| (began.elapsed(), Target::open(about.pid)))
    });
    let (restored, status, served) =
        served.map_err(|error| Error::from_io("run criu lazy-pages", &error))?;
    let (mut ran_after, target) = restored?;
    if !status.success() {
        // It would read zeroes where memory is missing.
        let killed = target.map_or(0, |target| end_all(&target));
        let why = format!(
            "criu lazy-pages ended before all memory was there, {status}; it was killed, and {} children",
            killed.saturating_sub(1)
        );
        return Err(Error::new(ErrorKind::Vanished, OPERATION).because(why));
    }
    if let Some(running) = running {
        let continued = target.and_then(|target| target.signal(SIGCONT));
        continued.map_err(|errno| Error::from_errno(OPERATION, errno))?;
        ran_after = began.elapsed();
        running(about.pid);
    }
    Ok(RestoredProcess { pid: about.pid, ran_after, served })
}

/// Waits until no thread, no process group and no session has one of the numbers. Processes that have ended have them until
/// their parent knows.
fn wait_free(numbers: &[i32]) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(3);
    const NAP: Duration = Duration::from_millis(5);
    let began = Instant::now();
    while let Some((number, stat)) = taken(numbers) {
        let has_ended = stat.rfind(')').is_some_and(|end| stat[end..].starts_with(") Z"));
        if !has_ended || began.elapsed() > PATIENCE {
            let name = procfs::command_name(&stat).unwrap_or_default();
            let why = format!(
                "its number {number} is that of another process, {name}, or of its group or session"
            );
            return Err(Error::new(ErrorKind::Busy, OPERATION).because(why).advise(
                "end that one, or restore in a PID namespace (unshare --pid --net --fork --mount-proc)",
            ));
        }
        std::thread::sleep(NAP);
    }
    Ok(())
}

/// One of the numbers that is not free, with the text of `/proc/PID/stat` of the process that has it.
fn taken(numbers: &[i32]) -> Option<(i32, String)> {
    let stat = |id: i32| fs::read_to_string(format!("/proc/{id}/stat")).ok();
    if let Some(found) = numbers.iter().find_map(|id| Some((*id, stat(*id)?))) {
        return Some(found);
    }
    procfs::process_ids().unwrap_or_default().into_iter().find_map(|id| {
        let stat = stat(id)?;
        let others = procfs::group_and_session(&stat)?;
        let number = others.into_iter().find(|other| numbers.contains(other))?;
        Some((number, stat))
    })
}

/// Ends a process and its descendants, which lack the same memory, and returns their number.
fn end_all(target: &Target) -> usize {
    // It makes no more of them.
    let _ = target.signal(SIGSTOP);
    let threads =
        fs::read_dir(format!("/proc/{}/task", target.pid())).into_iter().flatten().flatten();
    let children: String = threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .collect();
    let children =
        children.split_ascii_whitespace().filter_map(|pid| Target::open(pid.parse().ok()?).ok());
    let ended: usize = children.map(|child| end_all(&child)).sum();
    let _ = target.end();
    ended + 1
}

/// Waits until `criu lazy-pages` says that it listens.
fn wait_ready(child: &mut Child, work: &Path) -> Result<()> {
    let operation = "start criu lazy-pages";
    let output = child.stdout.as_mut().expect("it is piped");
    let failed = match output.read(&mut [0]) {
        Ok(1..) => return Ok(()),
        Ok(0) => None,
        Err(error) => Some(error),
    };
    let _ = child.kill();
    let status = failed.map_or_else(|| child.wait(), Err);
    let status = status.map_err(|error| Error::from_io(operation, &error))?;
    let log = fs::read(work.join(LAZY_LOG)).unwrap_or_default();
    Err(failure(operation.to_owned(), &String::from_utf8_lossy(&log), "", status))
}
