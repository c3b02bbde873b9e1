//! The point up to which a program is started.

use std::fs;
use std::str::FromStr;
use std::time::Duration;

/// When a program is warm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// It waits in `read(2)` of its standard input, or of its job.
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

/// The descriptor that a thread of a process waits to read, if that is one of `wanted`.
pub(super) fn waits_to_read(pid: i32, wanted: [i32; 2]) -> Option<i32> {
    /// Its number on x86-64.
    const READ: &str = "0";
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    tasks.flatten().find_map(|task| {
        // The call and its arguments (`proc_pid_syscall(5)`).
        let call = fs::read_to_string(task.path().join("syscall")).ok()?;
        let mut words = call.split_ascii_whitespace();
        if words.next() != Some(READ) {
            return None;
        }
        let number = words.next()?.strip_prefix("0x")?;
        let number = i32::from_str_radix(number, 16).ok()?;
        wanted.contains(&number).then_some(number)
    })
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
