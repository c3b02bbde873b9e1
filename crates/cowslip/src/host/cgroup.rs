//! The memory limit of this process's control group: `cgroups(7)`, version 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};

/// The tightest limit between a process's group and the top of what it can see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limit {
    pub(super) limit_bytes: u64,
    pub(super) used_bytes: u64,
}

/// The two versions, by the names of their files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Version {
    limit: &'static str,
    used: &'static str,
}

const V1: Version = Version { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes" };
const V2: Version = Version { limit: "memory.max", used: "memory.current" };

/// `None` if no group limits memory.
pub(super) fn memory_limit() -> Option<Limit> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let group = locate(&groups, &mounts)?;
    tightest(&group)
}

/// A group in the file system.
#[derive(PartialEq, Eq, Debug)]
struct Group {
    version: Version,
    mount: PathBuf,
    directory: PathBuf,
}

fn tightest(group: &Group) -> Option<Limit> {
    let limit_of = |directory: &Path| {
        let number = |name| fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok();
        let limit_bytes = number(group.version.limit)?;
        Some(Limit { limit_bytes, used_bytes: number(group.version.used).unwrap_or(0) })
    };
    group
        .directory
        .ancestors()
        .take_while(|directory| directory.starts_with(&group.mount))
        .filter_map(limit_of)
        .min_by_key(|limit| limit.limit_bytes)
}

fn locate(groups: &str, mounts: &str) -> Option<Group> {
    let is_memory = |list: &str| list.split(',').any(|controller| controller == "memory");
    let of_v1 = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        is_memory(controllers).then_some(path)
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
            V1 => kind == "cgroup" && is_memory(options),
            _ => kind == "cgroup2",
        };
        // In a container the mount may show a part of the tree only.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        is_it.then(|| Group { version, directory: mount.join(below), mount })
    })
}

#[cfg(test)]
mod tests {
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
    fn a_container_sees_a_part_of_the_tree() {
        let mounts = "9 1 0:9 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let inside = locate("0::/docker/1/init\n", mounts).unwrap();
        assert_eq!(inside.directory, Path::new("/sys/fs/cgroup/init"));
        let outside = locate("0::/../../system\n", mounts).unwrap();
        assert_eq!(outside.directory, Path::new("/sys/fs/cgroup"));
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
        fs::remove_dir_all(&mount).unwrap();
    }
}
