//! The programs of a recording.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use cowslip_sys::Errno;
use cowslip_sys::procfs::{self, CgroupMembers};

use super::error::{Error, ErrorKind};

/// Running programs to record.
///
/// ```
/// use cowslip_trace::record::Subject;
/// let subject = Subject::ControlGroup("/sys/fs/cgroup/system.slice/redis-server.service".into());
/// assert_eq!(
///     subject.to_string(),
///     "control group /sys/fs/cgroup/system.slice/redis-server.service"
/// );
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// These processes, and the threads and processes that they create.
    Processes(Vec<i32>),
    /// All processes of the control group with this directory and of those below it, now and later, but this one.
    ControlGroup(PathBuf),
    /// All processes of the machine, now and later, but this one.
    Machine,
}

impl Subject {
    /// The running processes, without this one unless it is named.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if there is no such control group.
    pub(super) fn process_ids(&self) -> Result<Vec<i32>, Error> {
        let own = std::process::id() as i32;
        let mut pids = match self {
            Self::Processes(pids) => return Ok(pids.clone()),
            Self::ControlGroup(directory) => CgroupMembers::open(directory)
                .and_then(|group| group.process_ids())
                .map_err(|errno| self.unusable(errno))?,
            Self::Machine => procfs::process_ids()
                .map_err(|errno| Error::refused("list the processes of the machine", errno))?,
        };
        pids.retain(|&pid| pid != own);
        Ok(pids)
    }

    /// Opens the directory of a control group.
    pub(super) fn open(&self, directory: &Path) -> Result<File, Error> {
        let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        File::open(directory).map_err(|error| self.unusable(errno(error)))
    }

    pub(super) fn unusable(&self, errno: Errno) -> Error {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::BADF => {
                let what = format!("{self}: there is none of version 2, or of perf_event");
                let advice = "`cat /proc/PID/cgroup` shows a process' own, below /sys/fs/cgroup";
                Error::new(ErrorKind::Usage, what).advise(advice)
            }
            _ => Error::refused(format!("attach to {self}"), errno),
        }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Processes(pids) => write!(f, "process {pids:?}"),
            Self::ControlGroup(path) => write!(f, "control group {}", path.display()),
            Self::Machine => f.write_str("all programs of the machine"),
        }
    }
}
