//! File systems in the text of `/proc/PID/mountinfo` (`proc_pid_mountinfo(5)`).

/// A mounted file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mount<'a> {
    /// Its device, as files and mappings have it.
    pub device: u64,
    /// The folder that it is mounted at; a space is written as `\040`.
    pub point: &'a str,
    /// Its own options, such as `rw,nosuid`.
    pub options: &'a str,
    /// The name of its kind, such as `tmpfs`.
    pub kind: &'a str,
}

/// The mounted file systems.
///
/// ```
/// use cowslip_sys::procfs::mounts;
/// let text = "22 1 0:21 / /dev/shm rw,nosuid shared:7 - tmpfs tmpfs rw\n23 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
/// let all: Vec<_> = mounts(text).map(|mount| (mount.device, mount.point, mount.options, mount.kind)).collect();
/// assert_eq!(all, [(21, "/dev/shm", "rw,nosuid", "tmpfs"), (8 << 8 | 1, "/", "rw", "ext4")]);
/// ```
pub fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        let mut words = place.split(' ').skip(2);
        let (major, minor) = words.next()?.split_once(':')?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let (point, options) = (words.nth(1)?, words.next()?);
        Some(Mount { device, point, options, kind: system.split(' ').next()? })
    })
}
