//! Files that hold memory: memfds (shmem or hugetlb), and reads and writes of them.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bitflags::bitflags;
use rustix::fs::{self, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, SeekFrom};
use rustix::io::retry_on_intr;

use crate::cache::{self, Cached};
use crate::failpoints::{self, Op};
use crate::reserved_fd::ReservedFd;
use crate::units::{VirtRange, page_size_bytes};
use crate::{BorrowedFd, Errno, OwnedFd, Result};

bitflags! {
    /// Operations that are no longer allowed on a memfd (`memfd_create(2)`, `fcntl(2)`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Seals: u32 {
        /// `F_SEAL_SEAL`
        const SEAL = 1;
        /// `F_SEAL_SHRINK`
        const SHRINK = 2;
        /// `F_SEAL_GROW`
        const GROW = 4;
        /// `F_SEAL_WRITE`: refused with `EBUSY` while the file is mapped shared and writable.
        const WRITE = 8;
        /// `F_SEAL_FUTURE_WRITE`
        const FUTURE_WRITE = 16;
    }
}

/// The memory behind a memfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemfdKind {
    /// shmem
    Shmem,
    /// hugetlb pages of 2 MiB, from the system's pool
    Hugetlb2M,
}

/// Creates a memfd of `len_bytes`, all holes, that can be sealed.
pub fn memfd(name: &str, kind: MemfdKind, len_bytes: u64) -> Result<OwnedFd> {
    failpoints::check(Op::MemfileOpen)?;
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if kind == MemfdKind::Hugetlb2M {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let fd = fs::memfd_create(name, flags)?;
    // The kernel gives a memfd all permissions. A process of another user that receives it for reading could reopen it
    // for writing.
    fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    fs::ftruncate(&fd, len_bytes)?;
    Ok(fd)
}

/// Sets `O_NONBLOCK` of the open file description, which a forked process shares; [`is_marked`] reads it. The flag has
/// no effect on a file in memory, and setting it needs no rights (`fcntl(2)`, `F_SETFL`).
pub fn mark(fd: BorrowedFd<'_>) -> Result<()> {
    let flags = fs::fcntl_getfl(fd)?;
    fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}

/// True if this process, or one that shares the open file description, has [marked](mark) it.
pub fn is_marked(fd: BorrowedFd<'_>) -> Result<bool> {
    Ok(fs::fcntl_getfl(fd)?.contains(OFlags::NONBLOCK))
}

/// The device of all memfds of shmem: a file system of the kernel's that nothing else is in. `None` if there can be none.
pub fn memfd_device() -> Option<u64> {
    const UNKNOWN: u64 = 0;
    const NONE: u64 = u64::MAX;
    // A `OnceLock` would wait for ever in the child of a fork that comes while another thread fills it.
    static DEVICE: AtomicU64 = AtomicU64::new(UNKNOWN);
    let find = || {
        let file = ReservedFd::open(|| memfd("cowslip-probe", MemfdKind::Shmem, 0)).ok()?;
        fs::fstat(&file).ok().map(|stat| stat.st_dev)
    };
    match DEVICE.load(Relaxed) {
        UNKNOWN => {
            let found = find();
            DEVICE.store(found.unwrap_or(NONE), Relaxed);
            found
        }
        NONE => None,
        known => Some(known),
    }
}

/// Adds seals; `EBUSY` means that the file is still mapped shared and writable.
pub fn seal(fd: BorrowedFd<'_>, seals: Seals) -> Result<()> {
    fs::fcntl_add_seals(fd, SealFlags::from_bits_retain(seals.bits()))
}

/// The seals of a file in memory; `EINVAL` for another file.
pub fn seals(fd: BorrowedFd<'_>) -> Result<Seals> {
    Ok(Seals::from_bits_retain(fs::fcntl_get_seals(fd)?.bits()))
}

/// Locks the file for this process without waiting: `EAGAIN` or `EACCES` if another process has it locked (`fcntl(2)`,
/// `F_SETLK`). The kernel releases the lock when the process ends.
pub fn lock(fd: BorrowedFd<'_>) -> Result<()> {
    fs::fcntl_lock(fd, fs::FlockOperation::NonBlockingLockExclusive)
}

/// Releases the [`lock`].
pub fn unlock(fd: BorrowedFd<'_>) {
    let _ = fs::fcntl_lock(fd, fs::FlockOperation::NonBlockingUnlock);
}

/// Frees the pages of a part of the file; it reads as zeroes afterwards.
pub fn punch_hole(fd: BorrowedFd<'_>, offset_bytes: u64, len_bytes: u64) -> Result<()> {
    failpoints::check(Op::Fallocate)?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fs::fallocate(fd, flags, offset_bytes, len_bytes)
}

/// Allocates a part of the file now; `ENOSPC` if the hugetlb pool or the file system has no room.
pub fn allocate(fd: BorrowedFd<'_>, offset_bytes: u64, len_bytes: u64) -> Result<()> {
    failpoints::check(Op::Fallocate)?;
    fs::fallocate(fd, FallocateFlags::KEEP_SIZE, offset_bytes, len_bytes)
}

/// Overwrites a part of the file with zeroes, keeping its pages.
pub fn write_zeroes(fd: BorrowedFd<'_>, offset_bytes: u64, len_bytes: u64) -> Result<()> {
    static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
    let mut done = 0;
    while done < len_bytes {
        let part = (len_bytes - done).min(ZEROES.len() as u64) as usize;
        let at = offset_bytes + done;
        match retry_on_intr(|| rustix::io::pwrite(fd, &ZEROES[..part], at))? {
            0 => return Err(Errno::IO),
            n => done += n as u64,
        }
    }
    Ok(())
}

/// The offset in `from .. end` of the file at which data begins.
pub fn data_at_or_after(fd: BorrowedFd<'_>, from: u64, end: u64) -> Result<Option<u64>> {
    match fs::seek(fd, SeekFrom::Data(from)) {
        Ok(start) if start < end => Ok(Some(start)),
        Ok(_) | Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The first part with data in `from .. end` of the file: offsets of its start and end. Memory that was allocated but
/// never used may count as data.
///
/// A search for a hole (`SEEK_HOLE`, `lseek(2)`) has no bound: it looks through all data up to the next hole of the
/// file, or its end. For a file in memory it is made only where `cachestat(2)` shows that a hole is near. Before Linux
/// 6.5 the pages up to `end` are checked instead.
pub fn next_data(fd: BorrowedFd<'_>, from: u64, end: u64) -> Result<Option<(u64, u64)>> {
    let Some(start) = data_at_or_after(fd, from, end)? else { return Ok(None) };
    let stop = match cache::cached(fd, start, end - start) {
        // Evicted pages of a file in memory are data in swap.
        Ok(cached) if cached.bytes.saturating_add(cached.evicted_bytes) >= end - start => end,
        // Where the kernel cannot map the pages for a look at them, the slower search is made.
        Err(_) if is_on_tmpfs(fd) => hole_by_pages(fd, start, end).or_else(|_| hole(fd, start))?,
        _ => hole(fd, start)?,
    };
    Ok(Some((start, stop.min(end))))
}

/// Counts the bytes in memory and in swap of `len_bytes` from `from` on, the start of a page, in a file on a tmpfs that
/// the caller owns (`cachestat(2)`; before Linux 6.5 `mincore(2)` and a search for data).
pub fn held(fd: BorrowedFd<'_>, from: u64, len_bytes: u64) -> Result<Cached> {
    if let Ok(cached) = cache::cached(fd, from, len_bytes) {
        return Ok(cached);
    }
    let bytes = cache::resident_bytes(fd, from, len_bytes)?;
    let (mut at, end, mut data_bytes) = (from, from.saturating_add(len_bytes), 0);
    while let Some((start, stop)) = next_data(fd, at, end)? {
        data_bytes += stop - start;
        at = stop;
    }
    Ok(Cached { bytes, evicted_bytes: u64::saturating_sub(data_bytes, bytes) })
}

/// The end of the data at `start`.
fn hole(fd: BorrowedFd<'_>, start: u64) -> Result<u64> {
    failpoints::check(Op::SeekHole)?;
    fs::seek(fd, SeekFrom::Hole(start))
}

/// Like [`hole`], for a file in memory; `end` or more if there is none before it.
fn hole_by_pages(fd: BorrowedFd<'_>, start: u64, end: u64) -> Result<u64> {
    let page_bytes = page_size_bytes() as u64;
    let from = start - start % page_bytes;
    let end = end.checked_next_multiple_of(page_bytes).ok_or(Errno::OVERFLOW)?;
    // A swapped-out page is data as well.
    let is_hole = |at| Ok(data_at_or_after(fd, at, end)? != Some(at));
    cache::first_absent(fd, from, end, is_hole)
}

/// Returns true if a file or a folder is on a tmpfs: its content is in memory. On other file systems, pages may be data
/// without being in memory; their searches use the state on disk.
pub fn is_on_tmpfs(fd: BorrowedFd<'_>) -> bool {
    fs::fstatfs(fd).is_ok_and(|system| system.f_type == libc::TMPFS_MAGIC)
}

/// Opens a new file without a name in a folder (`O_TMPFILE`), for reading and writing; the folder's file system is any
/// that has such files.
pub fn nameless(folder: &std::path::Path) -> Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    fs::open(folder, flags, Mode::RUSR | Mode::WUSR)
}

/// Bytes of memory that the file holds.
pub fn allocated_bytes(fd: BorrowedFd<'_>) -> Result<u64> {
    Ok(fs::fstat(fd)?.st_blocks as u64 * 512)
}

/// Opens the file behind `fd` once more, for reading only, by way of `/proc/self/fd`.
pub fn reopen_read_only(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    failpoints::check(Op::MemfileOpen)?;
    let mut name = *b"fd/\0\0\0\0\0\0\0\0\0\0";
    let number = rustix::path::DecInt::from_fd(fd);
    let number = number.as_bytes();
    let len = 3 + number.len();
    name.get_mut(3..len).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(number);
    crate::procfs::open_self(core::str::from_utf8(&name[..len]).map_err(|_| Errno::INVAL)?)
}

/// The length of a regular file; `EINVAL` for anything else.
pub fn len_bytes(fd: BorrowedFd<'_>) -> Result<u64> {
    let stat = fs::fstat(fd)?;
    match fs::FileType::from_raw_mode(stat.st_mode) {
        fs::FileType::RegularFile => u64::try_from(stat.st_size).map_err(|_| Errno::INVAL),
        _ => Err(Errno::INVAL),
    }
}

/// Reads at an offset, like `pread(2)`, and repeats if a signal interrupts it.
pub fn read_at(fd: BorrowedFd<'_>, buffer: &mut [u8], offset_bytes: u64) -> Result<usize> {
    retry_on_intr(|| rustix::io::pread(fd, &mut *buffer, offset_bytes))
}

/// Fills `buffer` from an offset on; `EIO` if the file ends first.
pub fn read_exact_at(fd: BorrowedFd<'_>, buffer: &mut [u8], offset_bytes: u64) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match read_at(fd, &mut buffer[done..], offset_bytes + done as u64)? {
            0 => return Err(Errno::IO),
            read => done += read,
        }
    }
    Ok(())
}

/// Opens a file for reads that bypass the page cache (`O_DIRECT`, `open(2)`): `EINVAL` where the file system cannot.
pub fn open_direct(path: &std::path::Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    fs::open(path, flags, Mode::empty())
}

/// Like [`read_at`], but only from the page cache, without waiting for the disk (`preadv2(2)`,
/// `RWF_NOWAIT`).
///
/// # Errors
/// `EAGAIN` if the page at `offset_bytes` is not cached, `EOPNOTSUPP` if the file system does not support it.
pub fn read_cached_at(fd: BorrowedFd<'_>, buffer: &mut [u8], offset_bytes: u64) -> Result<usize> {
    let mut buffers = [rustix::io::IoSliceMut::new(buffer)];
    rustix::io::preadv2(fd, &mut buffers, offset_bytes, rustix::io::ReadWriteFlags::NOWAIT)
}

/// Has the kernel begin to read a part of a file into the page cache (`posix_fadvise(2)`, `POSIX_FADV_WILLNEED`). It is
/// advice, so a failure is ignored. The cache then holds pages of 4 KiB, which take twice as long to read as the large
/// ones that a long read(2) leaves there.
pub fn will_need(fd: BorrowedFd<'_>, offset_bytes: u64, len_bytes: u64) {
    let len_bytes = core::num::NonZeroU64::new(len_bytes);
    let _ = fs::fadvise(fd, offset_bytes, len_bytes, fs::Advice::WillNeed);
}

/// Writes all of `content` at an offset; fails with the errno of the first write that made no progress
/// (`ENOSPC`, `ENOMEM` under a cgroup's limit).
pub fn write_at(fd: BorrowedFd<'_>, content: &[u8], offset_bytes: u64) -> Result<()> {
    failpoints::check(Op::Pwrite)?;
    let mut done = 0;
    while done < content.len() {
        let at = offset_bytes + done as u64;
        match retry_on_intr(|| rustix::io::pwrite(fd, &content[done..], at))? {
            0 => return Err(Errno::IO),
            n => done += n,
        }
    }
    Ok(())
}

/// Writes the memory of `source` to the file at an offset; fails with the errno of the first write
/// that made no progress (`ENOSPC`, `ENOMEM` under a cgroup's limit, `EFAULT` if unreadable).
///
/// # Safety
/// `source` is mapped, and no thread writes to it meanwhile.
#[allow(unsafe_code)]
pub unsafe fn write_range_at(
    fd: BorrowedFd<'_>,
    source: VirtRange,
    offset_bytes: u64,
) -> Result<()> {
    // SAFETY: the caller vouches for the range; an unreadable page makes pwrite(2) fail with
    // EFAULT, since only the kernel reads through this slice.
    let source = unsafe { core::slice::from_raw_parts(source.start as *const u8, source.len) };
    write_at(fd, source, offset_bytes)
}
