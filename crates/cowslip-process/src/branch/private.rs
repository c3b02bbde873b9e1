//! Folders of which each copy has its own (overlayfs).
//!
//! ```text
//!  FOLDER in the copy ─▶ overlay ─┬─ its changes: a tmpfs among the copy's mounts, which ends with them
//!                                 └─ the rest: the program's FOLDER
//! ```
//! Files and folders that the program has open there are opened again by their names, through the overlay, and its shared
//! mappings are made anew of these. Locks of such files are taken again. The kernel copies a file as a whole when it is first
//! opened to be written.

use std::collections::HashMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cowslip_sys::Errno;
use cowslip_sys::error::{Error, ErrorKind, Result, file_error};
use cowslip_sys::procfs::{Mapping, mappings, mounts, read_text};
use cowslip_sys::target::Target;
use libc::{
    AT_FDCWD, F_OFD_SETLK, F_RDLCK, F_SETLK, F_WRLCK, LOCK_EX, LOCK_NB, LOCK_SH, MAP_FIXED,
    MAP_SHARED, MS_NODEV, MS_NOEXEC, MS_NOSUID, O_ACCMODE, O_CLOEXEC, O_DIRECT, O_DIRECTORY,
    O_NOFOLLOW, O_PATH, O_RDONLY, O_RDWR, PROT_WRITE, SEEK_SET, SYS_chdir, SYS_close, SYS_fchmodat,
    SYS_fchownat, SYS_fcntl, SYS_flock, SYS_ftruncate, SYS_lseek, SYS_mkdirat, SYS_mmap, SYS_mount,
    SYS_openat,
};

use super::CopyOptions;
use super::caller::Caller;
use super::files::{KEPT, OpenFile, take_numbers};
use crate::descriptors;
use crate::look::failed;

const OPERATION: &str = "give each copy a folder of its own";
const DELETED: &str = " (deleted)";

/// Folders of which each copy has its own: other processes see none of the copy's changes there. It has the
/// program's files there, with the content of the moment at which it is made. Those that the program has open to write them end
/// where they did at the instant, if the [plan](crate::Plan::keep_private) knew of the folder.
#[derive(Clone, Debug, Default)]
pub struct PrivateFolders {
    all: Vec<PrivateFolder>,
}

#[derive(Clone, Debug)]
struct PrivateFolder {
    path: PathBuf,
    /// Flags of `mount(2)` that the mount has on which it is.
    flags: u64,
}

impl PrivateFolders {
    /// These folders. One that is inside of another comes with that.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for `/`, a file, and a folder in which something is mounted; [`ErrorKind::File`] if it cannot be
    /// looked up.
    pub fn new(paths: &[PathBuf]) -> Result<Self> {
        let text = read_text("/proc/self/mountinfo");
        let text = text.map_err(|errno| Error::from_errno(OPERATION, errno))?;
        let folder = |path: &PathBuf| PrivateFolder::find(path, &text);
        let mut all = paths.iter().map(folder).collect::<Result<Vec<_>>>()?;
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all.dedup_by(|inner, outer| inner.path.starts_with(&outer.path));
        Ok(Self { all })
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Lists the files there that copies of a process share with it, or have with later content.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the folders cannot be those of a copy; [`ErrorKind::Denied`] if this process may not look.
    pub fn shared(&self, pid: i32) -> Result<Vec<String>> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let refused = |why: String| {
            Err(Error::new(ErrorKind::Unsupported, OPERATION)
                .because(format!("process {pid}: {why}")))
        };
        let link = |name: &str| {
            let path = PathBuf::from(format!("/proc/{pid}/{name}"));
            fs::read_link(&path).map_err(|error| file_error(OPERATION, &path, error))
        };
        let (root, working) = (link("root")?, link("cwd")?);
        if root != Path::new("/") {
            return refused(format!("its root is {} (chroot(2))", root.display()));
        }
        if self.is_deleted_in(&working.to_string_lossy()) {
            return refused(format!("its working directory is {}", working.display()));
        }
        let maps = Target::open(pid).and_then(|target| target.read_file("maps")).map_err(failed)?;
        let links = descriptors::links(pid).map_err(failed)?;
        let deleted = links.iter().filter(|(_, link)| self.is_deleted_in(link));
        let mut all: Vec<String> = deleted
            .map(|(number, link)| format!("descriptor {number}, {link}: a copy shares its content"))
            .collect();
        let written = mappings(&maps).filter(|mapping| {
            self.is_shared(mapping) && mapping.protection & PROT_WRITE as u32 != 0
        });
        all.extend(written.map(|mapping| {
            let (from, to, name) = (mapping.range.start, mapping.range.end(), mapping.name);
            format!("shared memory at {from:#x}..{to:#x}, {name}: a copy's begins as that of later")
        }));
        Ok(all)
    }

    /// The sizes of the files that a process has open there, by descriptor.
    pub(crate) fn sizes(&self, pid: i32) -> Result<HashMap<i32, u64>, Errno> {
        if self.is_empty() {
            return Ok(HashMap::new());
        }
        let links = descriptors::links(pid)?;
        let here = links.iter().filter(|(_, link)| self.has_name(link));
        let size = |(number, _): &(i32, String)| {
            let about = fs::metadata(format!("/proc/{pid}/fd/{number}")).ok()?;
            about.is_file().then_some((*number, about.len()))
        };
        Ok(here.filter_map(size).collect())
    }

    fn has(&self, path: &Path) -> bool {
        self.all.iter().any(|folder| path.starts_with(&folder.path))
    }

    fn has_name(&self, name: &str) -> bool {
        !name.ends_with(DELETED) && self.has(Path::new(name))
    }

    fn is_deleted_in(&self, name: &str) -> bool {
        name.strip_suffix(DELETED).is_some_and(|path| self.has(Path::new(path)))
    }

    /// True for the memory of a file that other processes may map.
    fn is_shared(&self, mapping: &Mapping<'_>) -> bool {
        !mapping.is_private && mapping.has_file && self.has_name(mapping.name)
    }

    /// Mounts the overlays in a copy that has mounts of its own.
    pub(super) fn mount(&self, copy: &mut Caller<'_>, is_of_user: bool) -> Result<()> {
        self.all.iter().try_for_each(|folder| {
            folder.mount(copy, is_of_user).map_err(|errno| {
                let error = Error::from_errno(OPERATION, errno).of_file(&folder.path);
                match errno {
                    Errno::PERM | Errno::ACCESS if is_of_user => error
                        .because("a user namespace may not mount an overlay there")
                        .advise("run the program with CAP_SYS_ADMIN and CAP_NET_ADMIN, or use Linux 5.11 or later"),
                    Errno::NODEV => error.because("the kernel has no overlayfs").advise("modprobe overlay"),
                    Errno::INVAL => error.advise("see dmesg for the reason"),
                    _ => error,
                }
            })
        })
    }
}

impl PrivateFolder {
    /// The folder of this path, by the mounts of this process.
    fn find(path: &Path, mountinfo: &str) -> Result<Self> {
        let found = fs::canonicalize(path).and_then(|path| Ok((fs::metadata(&path)?, path)));
        let (about, path) = found.map_err(|error| file_error(OPERATION, path, error))?;
        let refused =
            |why: String| Err(Error::new(ErrorKind::Usage, OPERATION).of_file(&path).because(why));
        if !about.is_dir() {
            return refused("it is no folder".into());
        }
        if path == Path::new("/") || path.starts_with("/proc") {
            return refused("a copy needs the mounts there: name folders of files".into());
        }
        let points = mounts(mountinfo).map(|mount| (unescaped(mount.point), mount.options));
        let points: Vec<_> = points.collect();
        if let Some((inner, _)) =
            points.iter().find(|(point, _)| point.starts_with(&path) && *point != path)
        {
            return refused(format!("{} is mounted in it, and would be hidden", inner.display()));
        }
        let around = points.iter().filter(|(point, _)| path.starts_with(point));
        // The last of one place is above the others.
        let options = around
            .max_by_key(|(point, _)| point.as_os_str().len())
            .map_or("", |(_, options)| options);
        let kept = [("nosuid", MS_NOSUID), ("nodev", MS_NODEV), ("noexec", MS_NOEXEC)];
        let kept = kept.iter().filter(|(name, _)| options.split(',').any(|option| option == *name));
        let flags = kept.fold(0, |flags, (_, flag)| flags | flag);
        Ok(Self { flags, path })
    }

    fn mount(&self, copy: &mut Caller<'_>, is_of_user: bool) -> Result<(), Errno> {
        const ALL_BITS: u32 = 0o7777;
        let about = fs::metadata(&self.path)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let lower = self.open(copy)?;
        mount(copy, lower, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700")?;
        // The tmpfs now.
        let layers = self.open(copy)?;
        for name in ["upper\0", "work\0"] {
            let name = copy.put(0, name.as_bytes())?;
            copy.call(SYS_mkdirat, &[layers, name, 0o700])?;
        }
        // The folder itself is that of the upper layer.
        let upper = copy.put(0, b"upper\0")?;
        if !is_of_user {
            let (user, group) = (about.uid().into(), about.gid().into());
            copy.call(SYS_fchownat, &[layers, upper, user, group, 0])?;
        }
        copy.call(SYS_fchmodat, &[layers, upper, (about.mode() & ALL_BITS).into()])?;
        // Without privileges the kernel follows no moved folders.
        let rest = if is_of_user { "userxattr" } else { "redirect_dir=on" };
        let (lower_path, layers_path) = (descriptor(lower), descriptor(layers));
        let options = format!(
            "lowerdir={lower_path},upperdir={layers_path}/upper,workdir={layers_path}/work,{rest}"
        );
        mount(copy, lower, "overlay", self.flags, &options)?;
        [lower, layers].iter().try_for_each(|folder| copy.call(SYS_close, &[*folder]).map(drop))
    }

    /// Opens the folder in the copy, as the place for a mount.
    fn open(&self, copy: &mut Caller<'_>) -> Result<u64, Errno> {
        open(copy, &self.path, O_PATH | O_DIRECTORY | O_CLOEXEC)
    }
}

/// Mounts a file system on top of a folder and of its mounts.
fn mount(
    copy: &mut Caller<'_>,
    folder: u64,
    kind: &str,
    flags: u64,
    options: &str,
) -> Result<(), Errno> {
    const PLACE_AT: usize = 32;
    const OPTIONS_AT: usize = 64;
    let kind = copy.put(0, format!("{kind}\0").as_bytes())?;
    let place = copy.put(PLACE_AT, format!("{}\0", descriptor(folder)).as_bytes())?;
    let options = copy.put(OPTIONS_AT, format!("{options}\0").as_bytes())?;
    copy.call(SYS_mount, &[kind, place, kind, flags, options]).map(drop)
}

fn descriptor(number: u64) -> String {
    format!("/proc/self/fd/{number}")
}

/// Opens a file of the copy by its path.
fn open(copy: &mut Caller<'_>, path: &Path, flags: i32) -> Result<u64, Errno> {
    let path = copy.put(0, &[path.as_os_str().as_bytes(), b"\0"].concat())?;
    copy.call(SYS_openat, &[AT_FDCWD as u64, path, flags as u64, 0])
}

/// Opens the open files, the shared memory and the working directory of a copy again by their names, through the mounted
/// overlays.
pub(super) fn reopen(
    options: &CopyOptions<'_>,
    copy: &mut Caller<'_>,
    holder: &Target,
    (files, sizes): (&[OpenFile<'_>], &HashMap<i32, u64>),
) -> Result<()> {
    let folders = options.private;
    let named =
        |name: &Path, errno| Error::from_errno("open a copy's own file", errno).of_file(name);
    for file in files {
        // The first three are other files.
        if file.first() > 2 && folders.has_name(&file.link) {
            let (name, size) = (Path::new(&file.link), sizes.get(&file.first()).copied());
            reopen_file(copy, holder, file, name, size).map_err(|errno| named(name, errno))?;
        }
    }
    let maps = holder.read_file("maps").map_err(failed)?;
    for mapping in mappings(&maps).filter(|mapping| folders.is_shared(mapping)) {
        let name = Path::new(mapping.name);
        map_again(copy, &mapping, name).map_err(|errno| named(name, errno))?;
    }
    // After the last close of a descriptor, which gives up the locks of its file.
    for file in files.iter().filter(|file| file.first() > 2 && folders.has_name(&file.link)) {
        lock(copy, file).map_err(|errno| named(Path::new(&file.link), errno))?;
    }
    let working = match options.folder {
        Some(folder) => descriptor(folder.as_raw_fd() as u64),
        None => format!("/proc/{}/cwd", holder.pid()),
    };
    let working = fs::read_link(&working)
        .map_err(|error| file_error(OPERATION, Path::new(&working), error))?;
    if folders.has(&working) {
        let changed = copy
            .put(0, &[working.as_os_str().as_bytes(), b"\0"].concat())
            .and_then(|path| copy.call(SYS_chdir, &[path]));
        changed.map_err(|errno| named(&working, errno))?;
    }
    Ok(())
}

fn reopen_file(
    copy: &mut Caller<'_>,
    holder: &Target,
    file: &OpenFile<'_>,
    name: &Path,
    size: Option<u64>,
) -> Result<(), Errno> {
    let is_place = file.flags & O_PATH != 0;
    let old = format!("/proc/{}/fd/{}", holder.pid(), file.first());
    let Ok(about) = fs::metadata(&old) else { return Ok(()) };
    if !(is_place || about.is_file() || about.is_dir()) {
        return Ok(());
    }
    // Before Linux 6.6 tmpfs takes no O_DIRECT.
    let kept = if is_place { O_PATH | O_NOFOLLOW } else { KEPT & !O_DIRECT };
    let new = open(copy, name, file.flags & kept)?;
    if !is_place {
        let offset = file.state().number("pos", 10).unwrap_or(0);
        match copy.call(SYS_lseek, &[new, offset, SEEK_SET as u64]) {
            // A folder: the overlay has other offsets.
            Ok(_) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
        let is_written = file.flags & O_ACCMODE != O_RDONLY;
        // The copy's is of now at most.
        let has_grown = |size: &u64| fs::metadata(&old).is_ok_and(|now| now.len() > *size);
        if let Some(size) = size.filter(|size| is_written && has_grown(size)) {
            copy.call(SYS_ftruncate, &[new, size])?;
        }
    }
    take_numbers(copy, new, file)?;
    copy.call(SYS_close, &[new]).map(drop)
}

/// Maps the file that the copy sees by the name of a mapping.
fn map_again(copy: &mut Caller<'_>, mapping: &Mapping<'_>, name: &Path) -> Result<(), Errno> {
    let is_written = mapping.protection & PROT_WRITE as u32 != 0;
    let file = open(copy, name, if is_written { O_RDWR } else { O_RDONLY } | O_CLOEXEC)?;
    let (start, len) = (mapping.range.start as u64, mapping.range.len as u64);
    let flags = (MAP_SHARED | MAP_FIXED) as u64;
    let protection = u64::from(mapping.protection);
    copy.call(SYS_mmap, &[start, len, protection, flags, file, mapping.offset_bytes])?;
    copy.call(SYS_close, &[file]).map(drop)
}

/// Takes the locks that the program had by an open file: the copy's is of another file.
fn lock(copy: &mut Caller<'_>, file: &OpenFile<'_>) -> Result<(), Errno> {
    let number = file.first() as u64;
    for Lock { kind, is_exclusive, start, len } in file.state().text.lines().filter_map(Lock::parse)
    {
        let type_of_lock = (if is_exclusive { F_WRLCK } else { F_RDLCK }) as u64;
        let request = match kind {
            "POSIX" => F_SETLK,
            "OFDLCK" => F_OFD_SETLK,
            "FLOCK" => {
                let how = if is_exclusive { LOCK_EX } else { LOCK_SH } | LOCK_NB;
                copy.call(SYS_flock, &[number, how as u64])?;
                continue;
            }
            _ => continue,
        };
        // `struct flock`: the type, the beginning of the file as the origin, start and length, no process.
        let place = copy.put_words(0, &[type_of_lock, start, len, 0])?;
        copy.call(SYS_fcntl, &[number, request as u64, place])?;
    }
    Ok(())
}

/// A lock, such as `lock: 1: POSIX  ADVISORY  WRITE 4711 08:01:77 0 EOF`.
#[derive(PartialEq, Eq, Debug)]
struct Lock<'a> {
    kind: &'a str,
    is_exclusive: bool,
    start: u64,
    /// 0: up to the end, wherever that will be.
    len: u64,
}

impl<'a> Lock<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.strip_prefix("lock:")?.split_ascii_whitespace().collect();
        let [_, kind, _, access, _, _, start, end] = words[..] else { return None };
        let start = start.parse().ok()?;
        let len = match end {
            "EOF" => 0,
            end => end.parse::<u64>().ok()?.checked_sub(start)? + 1,
        };
        Some(Self { kind, is_exclusive: access == "WRITE", start, len })
    }
}

/// A path of the list of mounts, in which spaces and the like are octal numbers.
fn unescaped(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut path = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let number = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match number {
            Some(byte) => {
                path.push(byte);
                path.extend(&part.as_bytes()[3..]);
            }
            None => path.extend([b"\\", part.as_bytes()].concat()),
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
        23 22 0:21 / /tmp rw,nosuid,nodev shared:7 - tmpfs tmpfs rw\n\
        24 22 0:22 / /var/a\\040folder rw - tmpfs tmpfs rw\n";

    #[test]
    fn a_line_of_a_lock_is_read() {
        let lock = |line| Lock::parse(line);
        let (kind, is_exclusive) = ("POSIX", true);
        assert_eq!(
            lock("lock:\t1: POSIX  ADVISORY  WRITE 4711 08:01:77 120 129"),
            Some(Lock { kind, is_exclusive, start: 120, len: 10 })
        );
        assert_eq!(
            lock("lock:\t2: FLOCK  ADVISORY  READ 4711 08:01:77 0 EOF"),
            Some(Lock { kind: "FLOCK", is_exclusive: false, start: 0, len: 0 })
        );
        assert_eq!(lock("lock:\t1: POSIX  ADVISORY  WRITE 4711 08:01:77 9 1"), None);
        assert_eq!(lock("pos:\t0"), None);
    }

    #[test]
    fn a_path_of_the_list_of_mounts_is_read() {
        assert_eq!(unescaped("/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescaped("/a\\"), Path::new("/a\\"));
    }

    #[test]
    fn a_folder_keeps_the_flags_of_its_mount_and_hides_no_other() {
        let find = |path: &str| PrivateFolder::find(Path::new(path), MOUNTS);
        assert_eq!(find("/tmp").unwrap().flags, MS_NOSUID | MS_NODEV);
        assert_eq!(find("/usr").unwrap().flags, 0);
        assert_eq!(find("/").unwrap_err().kind(), ErrorKind::Usage);
        let hidden = find("/var").unwrap_err();
        assert!(hidden.reason().unwrap().contains("/var/a folder"), "{hidden}");
    }

    #[test]
    fn a_folder_in_another_comes_with_that_and_names_are_told_from_those_beside_it() {
        let folders = PrivateFolders::new(&["/usr/bin".into(), "/usr".into()]).unwrap();
        assert_eq!(folders.all.len(), 1);
        assert!(folders.has_name("/usr") && folders.has_name("/usr/bin/env"));
        assert!(!folders.has_name("/usr2/file") && !folders.has_name("/usr/file (deleted)"));
        assert!(folders.is_deleted_in("/usr/file (deleted)"));
    }
}
