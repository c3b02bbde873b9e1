//! Lists processes, and parses the files in which a process describes itself.

use std::path::{Path, PathBuf};

use crate::{Errno, Result};

/// Every process that `/proc` shows.
pub fn process_ids() -> Result<Vec<i32>> {
    let entries = std::fs::read_dir("/proc").map_err(|error| errno_of(&error))?;
    let number =
        |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.filter_map(number).collect())
}

/// The name in the text of `/proc/PID/stat`; it may hold any character.
pub fn command_name(stat: &str) -> Option<&str> {
    Some(&stat[stat.find('(')? + 1..stat.rfind(')')?])
}

/// The start of the process, in clock ticks after boot, by the text of `/proc/PID/stat`: together
/// with its number it identifies the process.
///
/// ```
/// use cowslip_sys::procfs;
/// let stat = format!("7 (a) b) S {} 4711 0", "0 ".repeat(18).trim());
/// assert_eq!(procfs::start_ticks(&stat), Some(4711));
/// assert_eq!(procfs::command_name(&stat), Some("a) b"));
/// ```
pub fn start_ticks(stat: &str) -> Option<u64> {
    // Field 22; the first after the name is field 3.
    stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// The number of its parent, by the text of `/proc/PID/stat`.
pub fn parent_pid(stat: &str) -> Option<i32> {
    // Field 4; the first after the name is field 3.
    stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(4 - 3)?.parse().ok()
}

/// The numbers of its group and of its session, by the text of `/proc/PID/stat`.
pub fn group_and_session(stat: &str) -> Option<[i32; 2]> {
    // Fields 5 and 6; the first after the name is field 3.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(5 - 3);
    let mut next = || fields.next()?.parse().ok();
    Some([next()?, next()?])
}

/// Returns true if a process disabled all huge pages for itself (`PR_SET_THP_DISABLE`), by the text of
/// `/proc/PID/status`. False if it excepted memory with advice, as a collapse has (`PR_THP_DISABLE_EXCEPT_ADVISED`).
pub fn thp_is_disabled(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
    line.is_some_and(|word| word.trim() == "0")
}

/// Resident memory of a process, by the text of `/proc/PID/status`.
pub fn resident_bytes(status: &str) -> u64 {
    super::field_bytes(status, "VmRSS").unwrap_or(0)
}

/// The processes of a control group and of those below it, of either version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CgroupMembers {
    directory: PathBuf,
}

impl CgroupMembers {
    /// The group with this directory; `ENOENT` if there is none.
    pub fn open(directory: &Path) -> Result<Self> {
        let list = directory.join("cgroup.procs");
        std::fs::metadata(&list).map_err(|error| errno_of(&error))?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// Their numbers now.
    pub fn process_ids(&self) -> Result<Vec<i32>> {
        let mut all = Vec::new();
        let mut groups = vec![self.directory.clone()];
        while let Some(group) = groups.pop() {
            let text = match std::fs::read_to_string(group.join("cgroup.procs")) {
                Ok(text) => text,
                // A group below disappeared meanwhile.
                Err(_) if group != self.directory => continue,
                Err(error) => return Err(errno_of(&error)),
            };
            all.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            let entries = std::fs::read_dir(&group).into_iter().flatten().flatten();
            let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            groups.extend(below.map(|entry| entry.path()));
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
