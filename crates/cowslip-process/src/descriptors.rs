//! Descriptors of a process: their kinds, and their state at an instant.

use std::fs;

use cowslip_sys::Result;

use crate::stop::ids;

/// What `/proc/PID/fdinfo` says of each descriptor (`proc_pid_fdinfo(5)`): offset and flags of the open file, the count of an
/// eventfd, the time of a timer.
pub(crate) fn states(pid: i32) -> Result<Vec<(i32, String)>> {
    let mut states = Vec::new();
    for number in ids(pid, "fdinfo")? {
        // Closed since, if the process runs.
        if let Ok(text) = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")) {
            states.push((number, text));
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
