//! The limits of control groups, of memory and of processor time: `cgroups(7)`, version 1 and 2.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::errno_of;
use crate::procfs::{Pressure, read_text};
use crate::{Errno, Result};

/// The tightest limit between a process's group and the top of the visible hierarchy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// The limit of the group.
    pub limit_bytes: u64,
    /// The memory that it uses.
    pub used_bytes: u64,
}

/// The two versions, by the names of their files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Version {
    limit: &'static str,
    used: &'static str,
    /// Another limit and the usage that counts against it. Version 1: memory and swap together. Version 2: the limit
    /// above which the kernel throttles the group's threads.
    other: [&'static str; 2],
    /// In `memory.stat`, for the group and those below it: file pages, which the kernel reclaims.
    files: [&'static str; 2],
}

const V1: Version = Version {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    other: ["memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"],
    files: ["total_active_file", "total_inactive_file"],
};
const V2: Version = Version {
    limit: "memory.max",
    used: "memory.current",
    other: ["memory.high", "memory.current"],
    files: ["active_file", "inactive_file"],
};

/// The tightest limit on this process; `None` if no group limits memory.
pub fn memory_limit() -> Option<Limit> {
    tightest(&Group::of_this_process()?)
}

/// The memory that a group, or one that it is part of, allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// The group's place in the file system.
    pub directory: PathBuf,
    /// Its limit.
    pub limit_bytes: u64,
    /// The part of the limit that is left, including file pages that the kernel reclaims.
    pub room_bytes: u64,
}

/// A group in the file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    version: Version,
    mount: PathBuf,
    directory: PathBuf,
}

impl Group {
    /// The group that this process's memory is charged to, if it can be seen.
    pub fn of_this_process() -> Option<Self> {
        let groups = read_text("/proc/self/cgroup").ok()?;
        let mounts = read_text("/proc/self/mountinfo").ok()?;
        locate(&groups, &mounts)
    }

    /// Share of the last ten seconds in which some task of the group waited for memory, in percent; 0 where the kernel
    /// does not report it (version 1).
    pub fn pressure_percent(&self) -> f64 {
        let text = read_text(self.directory.join("memory.pressure")).unwrap_or_default();
        Pressure::parse(&text).some_avg10_percent
    }

    /// The group's place in the file system.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The memory that counts against the group.
    pub fn used_bytes(&self) -> Option<u64> {
        number(&self.directory, self.version.used)
    }

    /// Has the kernel take about so many bytes back from the group, none of them into swap. It splits huge pages that
    /// hold hardly anything but zeroes, which may give back far more, and drops file pages. A lack of such memory is no
    /// error.
    ///
    /// `ENOENT` for version 1 and before Linux 5.19; `EINVAL` before 6.11, where swapping cannot be excluded.
    pub fn reclaim(&self, bytes: u64) -> Result<()> {
        let file = OpenOptions::new().write(true).open(self.directory.join("memory.reclaim"));
        let text = format!("{bytes} swappiness=0");
        let written = file.and_then(|mut file| file.write(text.as_bytes()));
        match written.map(drop).map_err(|error| errno_of(&error)) {
            // A signal has ended it early.
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            done => done,
        }
    }

    /// The memory that its processes can still have before they are throttled or killed, if anything limits them. A
    /// result above `enough` may be less than the true room.
    pub fn room_bytes(&self, enough_bytes: u64) -> Option<u64> {
        self.rooms(|_| enough_bytes).map(|room| room.room_bytes).min()
    }

    /// The same for each limiting group on the way up, `enough` by its limit.
    pub fn rooms(&self, enough_bytes: impl Fn(u64) -> u64) -> impl Iterator<Item = Room> {
        self.upwards().filter_map(move |directory| {
            let mut room = self.room_in(directory)?;
            if room.room_bytes < enough_bytes(room.limit_bytes) {
                room.room_bytes += self.files_bytes(directory);
            }
            Some(room)
        })
    }

    /// Returns true if a limit on the way up is below `total_bytes`.
    pub fn is_limited_below(&self, total_bytes: u64) -> bool {
        let names = [self.version.limit, self.version.other[0]];
        let is_below = |at: &Path, name| number(at, name).is_some_and(|limit| limit < total_bytes);
        self.upwards().any(|at| names.iter().any(|name| is_below(at, name)))
    }

    fn room_in(&self, directory: &Path) -> Option<Room> {
        let Version { limit, used, other, .. } = self.version;
        let left = |[limit, used]: [&str; 2]| {
            let limit_bytes = number(directory, limit)?;
            Some((limit_bytes.saturating_sub(number(directory, used)?), limit_bytes))
        };
        let least = left([limit, used]).into_iter().chain(left(other)).min();
        let (room_bytes, limit_bytes) = least?;
        Some(Room { directory: directory.to_owned(), limit_bytes, room_bytes })
    }

    /// The memory that the kernel reclaims when a limit is reached.
    fn files_bytes(&self, directory: &Path) -> u64 {
        let stat = read_text(directory.join("memory.stat")).unwrap_or_default();
        self.version.files.iter().filter_map(|name| field(&stat, name)).sum()
    }

    /// The group and all that it is a part of.
    fn upwards(&self) -> impl Iterator<Item = &Path> {
        self.directory.ancestors().take_while(|directory| directory.starts_with(&self.mount))
    }
}

/// The directory of systemd's slice of this name, by the mounts in the text of `/proc/self/mountinfo`; `None` if the name is
/// no slice's, or if no hierarchy has it.
///
/// ```
/// use cowslip_sys::cgroup::slice_directory;
/// let mounts = "9 1 0:9 / /nowhere rw - cgroup2 none rw\n";
/// assert_eq!(slice_directory("web.slice", mounts), None);
/// ```
pub fn slice_directory(name: &str, mounts: &str) -> Option<PathBuf> {
    let stem =
        name.strip_suffix(".slice").filter(|stem| !stem.is_empty() && !stem.contains('/'))?;
    // A dash leads to the slice below: a-b.slice is in a.slice.
    let ends = stem.match_indices('-').map(|(end, _)| end).chain([stem.len()]);
    let below: PathBuf = ends.map(|end| format!("{}.slice", &stem[..end])).collect();
    let hierarchies = mounts.lines().filter_map(|line| {
        let (place, file_system) = line.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next()?, file_system.nth(1)?);
        let is_systemds = kind == "cgroup2" || kind == "cgroup" && options.contains("name=systemd");
        is_systemds.then(|| place.split(' ').nth(4))?
    });
    hierarchies.map(|mount| Path::new(mount).join(&below)).find(|directory| directory.is_dir())
}

fn number(directory: &Path, name: &str) -> Option<u64> {
    read_text(directory.join(name)).ok()?.trim().parse().ok()
}

fn field(stat: &str, name: &str) -> Option<u64> {
    let of_line = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    stat.lines().find_map(of_line)
}

fn tightest(group: &Group) -> Option<Limit> {
    let limit_of = |directory: &Path| {
        let limit_bytes = number(directory, group.version.limit)?;
        let used_bytes = number(directory, group.version.used).unwrap_or(0);
        Some(Limit { limit_bytes, used_bytes })
    };
    group.upwards().filter_map(limit_of).min_by_key(|limit| limit.limit_bytes)
}

/// The group that a process's memory is charged to, by its `/proc/PID/cgroup` and our
/// `/proc/self/mountinfo`.
pub fn locate(groups: &str, mounts: &str) -> Option<Group> {
    find("memory", groups, mounts)
}

/// The groups that limit the processor time of a process, by the same texts: its own, and all that this is a part of.
pub fn of_processors(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let group = find("cpu", groups, mounts);
    group.iter().flat_map(Group::upwards).map(Path::to_owned).collect()
}

/// The time for which processors had threads of the group `directory` to run and its limit forbade it, since the group
/// was made; `None` for a group that cannot be limited.
pub fn throttled(directory: &Path) -> Option<Duration> {
    let stat = read_text(directory.join("cpu.stat")).ok()?;
    let of_v1 = || field(&stat, "throttled_time").map(Duration::from_nanos);
    field(&stat, "throttled_usec").map(Duration::from_micros).or_else(of_v1)
}

fn find(wanted: &str, groups: &str, mounts: &str) -> Option<Group> {
    let has_it = |list: &str| list.split(',').any(|controller| controller == wanted);
    let of_v1 = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        has_it(controllers).then_some(path)
    });
    let of_v2 = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let (version, path) = match (of_v1, of_v2) {
        (Some(path), _) => (V1, path),
        (None, Some(path)) => (V2, path),
        (None, None) => return None,
    };
    mounts.lines().find_map(|line| {
        let (place, file_system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, mount) = (place.next()?, PathBuf::from(place.next()?));
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next()?, file_system.nth(1)?);
        let is_it = match version {
            V1 => kind == "cgroup" && has_it(options),
            _ => kind == "cgroup2",
        };
        // In a container the mount may show only a part of the tree.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        is_it.then(|| Group { version, directory: mount.join(below), mount })
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MOUNTS: &str = "\
34 31 0:31 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn both_versions_are_found() {
        let v1 = locate("5:cpu:/\n4:memory:/a/b\n0::/\n", MOUNTS).unwrap();
        assert_eq!((v1.version, v1.directory), (V1, "/sys/fs/cgroup/memory/a/b".into()));
        let v2 = locate("5:cpu:/\n0::/user.slice\n", MOUNTS).unwrap();
        assert_eq!((v2.version, v2.directory), (V2, "/sys/fs/cgroup/unified/user.slice".into()));
        assert_eq!(locate("", MOUNTS), None);
        assert_eq!(locate("0::/\n", ""), None);
    }

    #[test]
    fn a_slice_is_found_below_those_that_its_name_begins_with() {
        let mount = std::env::temp_dir().join(format!("cowslip-slice-{}", std::process::id()));
        let directory = mount.join("a.slice/a-b.slice");
        fs::create_dir_all(&directory).unwrap();
        let mounts =
            format!("9 1 0:9 / {} rw - cgroup cgroup rw,xattr,name=systemd\n", mount.display());
        assert_eq!(slice_directory("a-b.slice", &mounts), Some(directory));
        assert_eq!(slice_directory("a.slice", &mounts), Some(mount.join("a.slice")));
        for name in ["b.slice", ".slice", "a", "../a.slice", "a.service"] {
            assert_eq!(slice_directory(name, &mounts), None, "{name}");
        }
        assert_eq!(slice_directory("a.slice", &mounts.replace("systemd", "x")), None);
        fs::remove_dir_all(&mount).unwrap();
    }

    #[test]
    fn a_container_sees_a_part_of_the_tree() {
        let mounts = "9 1 0:9 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let inside = locate("0::/docker/1/init\n", mounts).unwrap();
        assert_eq!(inside.directory, Path::new("/sys/fs/cgroup/init"));
        let outside = locate("0::/../../system\n", mounts).unwrap();
        assert_eq!(outside.directory, Path::new("/sys/fs/cgroup"));
    }

    #[test]
    fn throttled_time_is_read_in_both_versions_up_to_the_top() {
        let groups = of_processors("5:cpu:/a/b\n4:memory:/\n0::/\n", MOUNTS);
        let wanted = ["/sys/fs/cgroup/cpu/a/b", "/sys/fs/cgroup/cpu/a", "/sys/fs/cgroup/cpu"];
        assert_eq!(groups, wanted.map(PathBuf::from));
        assert_eq!(of_processors("4:memory:/a\n", MOUNTS), [] as [PathBuf; 0]);
        let directory = std::env::temp_dir().join(format!("cowslip-stat-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        assert_eq!(throttled(&directory), None);
        for (stat, wanted) in [
            ("nr_throttled 2\nthrottled_time 1500000\n", Some(1500)),
            ("usage_usec 7\nnr_throttled 2\nthrottled_usec 1500\n", Some(1500)),
            ("usage_usec 7\n", None),
        ] {
            fs::write(directory.join("cpu.stat"), stat).unwrap();
            assert_eq!(throttled(&directory), wanted.map(Duration::from_micros), "{stat}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_tightest_of_the_limits_on_the_way_up_counts() {
        let mount = std::env::temp_dir().join(format!("cowslip-cgroup-{}", std::process::id()));
        let directory = mount.join("a/b");
        fs::create_dir_all(&directory).unwrap();
        let set = |place: &Path, limit: &str, used: &str| {
            fs::write(place.join(V2.limit), limit).unwrap();
            fs::write(place.join(V2.used), used).unwrap();
        };
        set(&directory, "max\n", "1\n");
        let group = Group { version: V2, mount: mount.clone(), directory: directory.clone() };
        assert_eq!(tightest(&group), None);
        set(&mount.join("a"), "4096\n", "2\n");
        set(&mount, "8192\n", "3\n");
        assert_eq!(tightest(&group), Some(Limit { limit_bytes: 4096, used_bytes: 2 }));
        assert_eq!(group.room_bytes(1000), Some(4094));
        assert!(group.is_limited_below(4097) && !group.is_limited_below(4096));
        let stat = "anon 5\ninactive_file 70\nactive_file 800\nactive_file_x 1\n";
        fs::write(mount.join("a/memory.stat"), stat).unwrap();
        assert_eq!(group.room_bytes(5000), Some(4094 + 870), "files can be taken back");
        fs::write(directory.join("memory.high"), "101\n").unwrap();
        assert_eq!(group.room_bytes(50), Some(100), "held up before it is killed");
        fs::remove_dir_all(&mount).unwrap();
    }
}
