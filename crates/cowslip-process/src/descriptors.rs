//! Descriptors of a process: their kinds, and their state at an instant.

use std::fs;

use cowslip_sys::Result;

use crate::stop::ids;

/// The state of a descriptor, and of its open file, at an instant: the text of `/proc/PID/fdinfo/FD` (`proc_pid_fdinfo(5)`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescriptorState {
    /// The number of the descriptor.
    pub number: i32,
    /// Lines such as `pos:\t77`: offset and flags of the open file, the count of an eventfd, the time of a timer.
    pub text: String,
}

impl DescriptorState {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// The value of a field that is a number.
    pub fn number(&self, name: &str, radix: u32) -> Option<u64> {
        u64::from_str_radix(self.field(name)?, radix).ok()
    }

    /// `O_CLOEXEC`, or 0.
    pub(crate) fn closes_at_exec(&self) -> u64 {
        self.number("flags", 8).unwrap_or(0) & libc::O_CLOEXEC as u64
    }

    /// Seconds and nanoseconds, as in `(1, 500)`.
    pub fn time(&self, name: &str) -> Option<(u64, u64)> {
        let inner = self.field(name)?.strip_prefix('(')?.strip_suffix(')')?;
        let (seconds, rest) = inner.split_once(',')?;
        Some((seconds.trim().parse().ok()?, rest.trim().parse().ok()?))
    }
}

/// The state of each descriptor.
pub(crate) fn states(pid: i32) -> Result<Vec<DescriptorState>> {
    Ok(ids(pid, "fdinfo")?.into_iter().filter_map(|number| state(pid, number)).collect())
}

/// The state of a descriptor; `None` if it is not open.
pub(crate) fn state(pid: i32, number: i32) -> Option<DescriptorState> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
    Some(DescriptorState { number, text })
}

/// The descriptors, and what they refer to.
pub(crate) fn links(pid: i32) -> Result<Vec<(i32, String)>> {
    let link = |number| {
        let link = fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
        Some((number, link.to_string_lossy().into_owned()))
    };
    Ok(ids(pid, "fd")?.into_iter().filter_map(link).collect())
}

/// The inode number in the name of a descriptor's file, such as `pipe:[4711]`.
pub(crate) fn inode(link: &str, kind: &str) -> Option<u64> {
    link.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}
