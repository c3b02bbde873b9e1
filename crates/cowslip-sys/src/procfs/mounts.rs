//! File systems in the text of `/proc/PID/mountinfo` (`proc_pid_mountinfo(5)`).

/// The devices of the mounted file systems of memory (`tmpfs(5)`), as `/dev/shm` is one.
///
/// ```
/// use cowslip_sys::procfs::tmpfs_devices;
/// let text = "22 1 0:21 / /dev/shm rw,nosuid shared:7 - tmpfs tmpfs rw\n23 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
/// assert_eq!(tmpfs_devices(text).collect::<Vec<_>>(), [21]);
/// ```
pub fn tmpfs_devices(mountinfo: &str) -> impl Iterator<Item = u64> {
    mountinfo.lines().filter_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        if system.split(' ').next() != Some("tmpfs") {
            return None;
        }
        let (major, minor) = place.split(' ').nth(2)?.split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    })
}
