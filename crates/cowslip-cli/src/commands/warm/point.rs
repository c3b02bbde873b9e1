//! The point up to which a program is started.

use std::fs;
use std::str::FromStr;
use std::time::Duration;

use cowslip_sys::target::Target;
use cowslip_sys::units::VirtRange;

/// When a program is warm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// It waits to read its standard input, or its job.
    Read,
    /// Its output has a line with this text.
    Line(String),
    /// It listens at a TCP port.
    Port(u16),
    /// Some time has passed.
    After(Duration),
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "read, line:TEXT, port:N or seconds:N is wanted".to_owned();
        match text.split_once(':') {
            None if text == "read" => Ok(Self::Read),
            Some(("line", text)) if !text.is_empty() => Ok(Self::Line(text.to_owned())),
            Some(("port", port)) => {
                port.parse().ok().filter(|port| *port > 0).map(Self::Port).ok_or_else(wrong)
            }
            Some(("seconds", seconds)) => super::seconds(seconds).map(Self::After),
            _ => Err(wrong()),
        }
    }
}

/// Numbers of calls on x86-64.
mod calls {
    pub(super) const READ: u32 = 0;
    pub(super) const POLL: [u32; 2] = [7, 271];
    pub(super) const SELECT: [u32; 2] = [23, 270];
    pub(super) const EPOLL_WAIT: [u32; 3] = [232, 281, 441];
}

/// The descriptor that a thread of a process waits to read, if that is one of `wanted`: in `read(2)`, or in a wait for several
/// files (`epoll_wait(2)`, `poll(2)`, `select(2)`).
pub(super) fn waits_to_read(pid: i32, wanted: [i32; 2]) -> Option<i32> {
    let process = Target::open(pid).ok()?;
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    tasks.flatten().find_map(|task| {
        // The call and its arguments (`proc_pid_syscall(5)`).
        let call = fs::read_to_string(task.path().join("syscall")).ok()?;
        let (number, rest) = call.split_once(' ')?;
        let arguments = rest.split_ascii_whitespace().map(|word| {
            word.strip_prefix("0x").and_then(|word| u64::from_str_radix(word, 16).ok())
        });
        let arguments: Vec<u64> = arguments.map_while(|word| word).collect();
        let [first, second, ..] = arguments[..] else { return None };
        let number: u32 = number.parse().ok()?;
        wanted.into_iter().find(|&file| match number {
            calls::READ => first as i32 == file,
            number if calls::EPOLL_WAIT.contains(&number) => has_in_set(pid, first as i32, file),
            number if calls::POLL.contains(&number) => polls(&process, first, second, file),
            number if calls::SELECT.contains(&number) => selects(&process, first, second, file),
            _ => false,
        })
    })
}

/// Returns true if a set of files has a descriptor (`proc_pid_fdinfo(5)`).
fn has_in_set(pid: i32, set: i32, file: i32) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{set}")).unwrap_or_default();
    let mut numbers = info.lines().filter_map(|line| line.strip_prefix("tfd:"));
    numbers.any(|rest| rest.split_ascii_whitespace().next() == Some(&*file.to_string()))
}

/// Returns true if a list of `struct pollfd` has a descriptor to be read.
fn polls(process: &Target, list: u64, count: u64, file: i32) -> bool {
    const POLLIN: i16 = 1;
    const ENTRY_BYTES: usize = 8;
    const MOST_ENTRIES: u64 = 1 << 16;
    let range = VirtRange::new(list as usize, count.min(MOST_ENTRIES) as usize * ENTRY_BYTES);
    let list = process.read_memory(range).unwrap_or_default();
    list.chunks_exact(ENTRY_BYTES).any(|entry| {
        let number = i32::from_ne_bytes(entry[..4].try_into().expect("4 bytes"));
        let events = i16::from_ne_bytes(entry[4..6].try_into().expect("2 bytes"));
        number == file && events & POLLIN != 0
    })
}

/// Returns true if an `fd_set` has a descriptor.
fn selects(process: &Target, count: u64, set: u64, file: i32) -> bool {
    let (byte, bit) = (file as usize / 8, file % 8);
    let place = VirtRange::new((set as usize).wrapping_add(byte), 1);
    let is_there = || process.read_memory(place).is_ok_and(|byte| byte[0] >> bit & 1 == 1);
    (file as u64) < count && set != 0 && is_there()
}

/// True if a process has a socket that listens at a port.
pub(super) fn listens(pid: i32, port: u16) -> bool {
    const LISTENS: &str = "0A";
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|file| {
            let link = fs::read_link(file.path()).ok()?.to_string_lossy().into_owned();
            Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let place = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, local, _, state, ..] = &words[..] else { return false };
            let inode = words.get(9).copied().unwrap_or_default();
            local.ends_with(&place) && *state == LISTENS && sockets.iter().any(|own| own == inode)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read_and_others_refused() {
        assert_eq!("read".parse(), Ok(Point::Read));
        assert_eq!("line:Ready: now".parse(), Ok(Point::Line("Ready: now".into())));
        assert_eq!("port:8080".parse(), Ok(Point::Port(8080)));
        assert_eq!("seconds:1.5".parse(), Ok(Point::After(Duration::from_millis(1500))));
        for wrong in ["", "line:", "port:0", "port:x", "seconds:-1", "other:1"] {
            assert!(wrong.parse::<Point>().is_err(), "{wrong}");
        }
    }
}
