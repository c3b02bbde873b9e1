//! Bytes on their way from a program to itself, in pipes and pairs of sockets with both ends in it.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use cowslip_sys::target::Target;
use cowslip_sys::{AsFd, Errno, Result, shared_queue};

use crate::descriptors::inode;

/// The bytes that waited at an instant, by the name of the pipe, or of the socket that would receive them.
pub(crate) type Waiting = HashMap<String, Vec<u8>>;

/// The descriptors of such ends, and their names, among all of a program's.
pub(crate) fn own(links: &[(i32, String)]) -> Result<Vec<(i32, String)>> {
    let mut ends: HashMap<&str, u32> = HashMap::new();
    links.iter().for_each(|(_, link)| *ends.entry(link).or_default() += 1);
    let sockets: HashSet<u64> =
        links.iter().filter_map(|(_, link)| inode(link, "socket")).collect();
    let no_peers = || Ok(HashMap::new());
    let peers = if sockets.is_empty() { no_peers() } else { shared_queue::unix_peers() };
    // Without the kernel's module a branch fails, and says so.
    let peers =
        peers.or_else(|errno| if errno == Errno::NOENT { no_peers() } else { Err(errno) })?;
    let is_own = |link: &str| match inode(link, "socket") {
        Some(socket) => peers.get(&socket).is_some_and(|peer| sockets.contains(peer)),
        None => link.starts_with("pipe:") && ends[link] > 1,
    };
    Ok(links.iter().filter(|(_, link)| is_own(link)).cloned().collect())
}

/// Copies the bytes that wait, while the program is stopped.
pub(crate) fn waiting(target: &Target, own: &[(i32, String)]) -> Result<Waiting> {
    let mut waiting = Waiting::new();
    for (number, link) in own {
        let path = Path::new("/proc").join(target.pid().to_string()).join(format!("fd/{number}"));
        // Closed since the look, or another by now.
        let is_there = std::fs::read_link(&path).is_ok_and(|now| now.to_str() == Some(link));
        if !is_there || waiting.contains_key(link) {
            continue;
        }
        let bytes = match link.starts_with("pipe:") {
            true => shared_queue::waiting_in_pipe(&path)?,
            false => shared_queue::waiting_in_socket(target.descriptor(*number)?.as_fd())?,
        };
        waiting.insert(link.clone(), bytes);
    }
    Ok(waiting)
}
