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
    let mut states = Vec::new();
    for number in ids(pid, "fdinfo")? {
        // Closed since, if the process runs.
        if let Ok(text) = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")) {
            states.push(DescriptorState { number, text });
        }
    }
    Ok(states)
}

/// The descriptors, and what they refer to.
pub(crate) fn links(pid: i32) -> Result<Vec<(i32, String)>> {
    let link = |number| {
        let link = fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
        Some((number, link.to_string_lossy().into_owned()))
    };
    Ok(ids(pid, "fd")?.into_iter().filter_map(link).collect())
}
