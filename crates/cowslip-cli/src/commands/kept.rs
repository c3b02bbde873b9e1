//! Processes in the background that keep something, found by abstract names (`unix(7)`), which any user may take.

use std::fs;

use cowslip_sys::packets::{self, Peer};
use cowslip_sys::{AsFd, Errno, OwnedFd};

use crate::exit::{self, DENIED, Failure, NO};

/// Connects to the process that keeps `what`. A process of another user than `may_keep` has taken the name.
pub(super) fn connect(
    name: &str,
    what: &str,
    may_keep: &[u32],
    advice: &str,
) -> Result<OwnedFd, Failure> {
    let failed = |errno: Errno| exit::system(format!("reach {what}"))(errno.into());
    let connection = match packets::connect_to_name(name.as_bytes()) {
        Err(Errno::CONNREFUSED) => {
            return Err(Failure::new(NO, format!("there is no {what}; {advice}")));
        }
        connection => connection.map_err(failed)?,
    };
    let Peer { uid, .. } = packets::peer(connection.as_fd()).map_err(failed)?;
    match may_keep.contains(&uid) {
        true => Ok(connection),
        false => Err(Failure::new(DENIED, format!("user {uid} has taken the name of the {what}"))),
    }
}

/// The ends of the names that begin with `prefix`, in order.
pub(super) fn names(prefix: &str) -> Vec<String> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let prefix = format!("@{prefix}");
    let end = |line: &str| Some(line.split_once(&prefix)?.1.trim().to_owned());
    let mut names: Vec<String> = sockets.lines().filter_map(end).collect();
    names.sort_unstable();
    names.dedup();
    names
}
