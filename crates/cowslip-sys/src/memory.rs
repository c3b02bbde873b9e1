#![allow(unsafe_code)]
//! Address space: reserve, map, move, protect, advise.
//!
//! # Safety
//! Every `unsafe` function here changes the meaning of the addresses of a range. Its caller owns
//! the range: no code relies on another meaning of it, and no Rust reference into it is held across
//! a change that a reader of the reference could see. `mmap(2)`, `mremap(2)`, `madvise(2)`.

use core::ffi::c_void;

use bitflags::bitflags;
use rustix::mm::{self, MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use crate::failpoints::{self, Op};
use crate::units::{VirtRange, page_size_bytes};
use crate::{AsRawFd, BorrowedFd, Errno, Result};

/// `UIO_MAXIOV`
const MOST_VECTORS: usize = 1024;

bitflags! {
    /// The accesses that a mapping allows.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct Prot: u32 {
        /// `PROT_READ`
        const READ = 1;
        /// `PROT_WRITE`
        const WRITE = 2;
        /// `PROT_EXEC`
        const EXEC = 4;
    }
}

impl Prot {
    /// No access: a guard, or unused space.
    pub const NONE: Self = Self::empty();
    /// Read and write.
    pub const RW: Self = Self::READ.union(Self::WRITE);
}

/// The target of writes: the file or a private copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// `MAP_SHARED`
    Shared,
    /// `MAP_PRIVATE`
    Private,
}

/// Advice that Cowslip gives; the number is the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
#[allow(missing_docs, reason = "named as in madvise(2)")]
pub enum Advice {
    DontNeed = 4,
    Free = 8,
    DontFork = 10,
    DoFork = 11,
    HugePage = 14,
    NoHugePage = 15,
    DontDump = 16,
    DoDump = 17,
    WipeOnFork = 18,
    PopulateRead = 22,
    PopulateWrite = 23,
    Collapse = 25,
}

fn ptr(range: VirtRange) -> *mut c_void {
    range.start as *mut c_void
}

/// Reserves `len` bytes of address space aligned to `align` (a power of two, at least a page):
/// `PROT_NONE`, no memory behind it.
pub fn reserve(len: usize, align: usize) -> Result<VirtRange> {
    reserve_near(0, len, align)
}

/// Like [`reserve`], for mappings that must not land where other code has just unmapped memory: far below the kernel's
/// own choice, if there is room.
pub fn reserve_apart(len: usize, align: usize) -> Result<VirtRange> {
    /// Places of long-lived mappings may be met on the way around.
    const MOST_TRIES: u32 = 16;
    let mut tries = 0;
    loop {
        tries += 1;
        let hint = apart::next(len.saturating_add(align));
        let found = reserve_near(hint, len, align)?;
        if hint == 0 || tries == MOST_TRIES || apart::has(found) {
            apart::note(found);
            return Ok(found);
        }
        // SAFETY: reserved just now, and known to no other code.
        unsafe { unmap(found) }?;
    }
}

/// The addresses of all memory that was ever [reserved apart](reserve_apart), if other code's memory lies elsewhere.
pub fn area_apart() -> Option<VirtRange> {
    apart::area()
}

/// Addresses that the kernel is asked to use for mappings that lie apart: each a different one, so that nothing is
/// there yet.
mod apart {
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use crate::units::{VirtRange, page_size_bytes};

    const BELOW_BYTES: usize = 32 << 40;
    const LOWEST: usize = 16 << 40;
    /// Smaller mappings lie together, so that they need few page tables.
    const SMALL_BYTES: usize = 2 << 20;
    const SMALL_AREA_BYTES: usize = 1 << 40;
    /// Ends above the place of position-independent programs and of their heaps.
    const LARGE_AREA_BYTES: usize = 4 << 40;

    /// The end of the area: 0 means that it is not known yet, 1 that there is none.
    static END: AtomicUsize = AtomicUsize::new(0);
    static SMALL: AtomicUsize = AtomicUsize::new(0);
    static LARGE: AtomicUsize = AtomicUsize::new(0);
    /// The lowest address that was found, and not 0 if one was outside of the area.
    static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);
    static STRAYED: AtomicUsize = AtomicUsize::new(0);

    /// Returns true for a mapping in the area.
    pub(super) fn has(found: VirtRange) -> bool {
        let end = END.load(Relaxed);
        let lowest = end.saturating_sub(SMALL_AREA_BYTES + LARGE_AREA_BYTES);
        lowest <= found.start && found.end() <= end
    }

    /// Notes the place of a mapping.
    pub(super) fn note(found: VirtRange) {
        match has(found) {
            true => _ = FIRST.fetch_min(found.start, Relaxed),
            false => STRAYED.store(1, Relaxed),
        }
    }

    pub(super) fn area() -> Option<VirtRange> {
        let (first, end) = (FIRST.load(Relaxed), END.load(Relaxed));
        (STRAYED.load(Relaxed) == 0 && first < end).then(|| VirtRange::between(first, end))
    }

    /// An address for `len` bytes; 0 means anywhere.
    pub(super) fn next(len: usize) -> usize {
        let end = match END.load(Relaxed) {
            0 => find_end(),
            end => end,
        };
        let Some(len) = len.checked_next_multiple_of(page_size_bytes()) else { return 0 };
        let (used, area, end) = match len < SMALL_BYTES {
            true => (&SMALL, SMALL_AREA_BYTES, end),
            false => (&LARGE, LARGE_AREA_BYTES, end.saturating_sub(SMALL_AREA_BYTES)),
        };
        if end < LOWEST || len > area {
            return 0;
        }
        // From the end downwards, then around.
        let before = used.fetch_add(len, Relaxed) % area;
        let below = if before + len <= area { before + len } else { len };
        end - below
    }

    fn find_end() -> usize {
        let page = page_size_bytes();
        let near = super::reserve(page, page).map_or(0, |near| near.start);
        if near != 0 {
            // SAFETY: reserved just now, and known to no other code.
            let _ = unsafe { super::unmap(super::VirtRange::new(near, page)) };
        }
        let lowest = LOWEST + SMALL_AREA_BYTES + LARGE_AREA_BYTES;
        let end = near.checked_sub(BELOW_BYTES).filter(|end| *end >= lowest).unwrap_or(1);
        END.store(end, Relaxed);
        end
    }
}

fn reserve_near(hint: usize, len: usize, align: usize) -> Result<VirtRange> {
    failpoints::check(Op::Mmap)?;
    // A mapping begins with a page anyway.
    let padding = align.saturating_sub(page_size_bytes());
    let padded = len.checked_add(padding).ok_or(Errno::NOMEM)?;
    // SAFETY: without MAP_FIXED an anonymous mapping overlaps nothing, at any address.
    let start = unsafe {
        mm::mmap_anonymous(
            hint as *mut c_void,
            padded,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }? as usize;
    let whole = VirtRange::new(start, padded);
    let kept = VirtRange::new((start + align - 1) & !(align - 1), len);
    for extra in
        [VirtRange::between(whole.start, kept.start), VirtRange::between(kept.end(), whole.end())]
    {
        if !extra.is_empty() {
            // SAFETY: both ends lie in the mapping made above, outside the part that is returned.
            unsafe { unmap(extra) }?;
        }
    }
    Ok(kept)
}

/// Reserves exactly `range`, if nothing is mapped there (else `EEXIST`; `MAP_FIXED_NOREPLACE`).
pub fn reserve_at(range: VirtRange) -> Result<()> {
    failpoints::check(Op::Mmap)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: the kernel refuses to replace anything.
    unsafe { mm::mmap_anonymous(ptr(range), range.len, ProtFlags::empty(), flags) }?;
    Ok(())
}

/// Maps `file` from `offset_bytes` on at exactly `range`, replacing the old mapping in one step.
/// `MAP_NORESERVE`: pages are charged when they are touched.
///
/// # Safety
/// The caller owns `range` (see the module).
pub unsafe fn map_file(
    range: VirtRange,
    file: BorrowedFd<'_>,
    offset_bytes: u64,
    sharing: Sharing,
    prot: Prot,
) -> Result<()> {
    failpoints::check(Op::Mmap)?;
    let flags = MapFlags::FIXED | MapFlags::NORESERVE | sharing_flag(sharing);
    // SAFETY: the caller owns the range that MAP_FIXED replaces.
    unsafe { mm::mmap(ptr(range), range.len, prot_flags(prot), flags, file, offset_bytes) }?;
    Ok(())
}

/// Maps `file` from `offset_bytes` on at exactly `range`, shared, if nothing is mapped there (else `EEXIST`).
pub fn map_file_in_hole(
    range: VirtRange,
    file: BorrowedFd<'_>,
    offset_bytes: u64,
    prot: Prot,
) -> Result<()> {
    failpoints::check(Op::Mmap)?;
    let flags = MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE | MapFlags::SHARED;
    // SAFETY: the kernel refuses to replace anything.
    unsafe { mm::mmap(ptr(range), range.len, prot_flags(prot), flags, file, offset_bytes) }?;
    Ok(())
}

/// Maps `file` anywhere, with reservation: for hugetlb, the pool reserves the whole range now or the call fails with
/// `ENOMEM`.
pub fn map_file_reserved(
    len: usize,
    file: BorrowedFd<'_>,
    offset_bytes: u64,
    sharing: Sharing,
) -> Result<VirtRange> {
    failpoints::check(Op::Mmap)?;
    // SAFETY: a mapping at an address of the kernel's choice overlaps nothing.
    let start = unsafe {
        mm::mmap(
            core::ptr::null_mut(),
            len,
            prot_flags(Prot::RW),
            sharing_flag(sharing),
            file,
            offset_bytes,
        )
    }?;
    Ok(VirtRange::new(start as usize, len))
}

/// Maps a page of zeroes [apart](reserve_apart) that children share (`MAP_SHARED | MAP_ANONYMOUS`).
pub fn map_shared_page() -> Result<VirtRange> {
    let len = page_size_bytes();
    failpoints::check(Op::Mmap)?;
    let flags = MapFlags::SHARED;
    let hint = apart::next(len) as *mut c_void;
    // SAFETY: without MAP_FIXED a mapping overlaps nothing, at any address.
    let start = unsafe { mm::mmap_anonymous(hint, len, prot_flags(Prot::RW), flags) }?;
    Ok(VirtRange::new(start as usize, len))
}

/// Maps private zeroed memory at exactly `range`, replacing the old mapping.
///
/// # Safety
/// The caller owns `range`.
pub unsafe fn map_anonymous(range: VirtRange, prot: Prot) -> Result<()> {
    failpoints::check(Op::Mmap)?;
    let flags = MapFlags::FIXED | MapFlags::NORESERVE | MapFlags::PRIVATE;
    // SAFETY: the caller owns the range that MAP_FIXED replaces.
    unsafe { mm::mmap_anonymous(ptr(range), range.len, prot_flags(prot), flags) }?;
    Ok(())
}

/// Unmaps `range`.
///
/// # Safety
/// The caller owns `range`.
pub unsafe fn unmap(range: VirtRange) -> Result<()> {
    // SAFETY: as the caller promised.
    unsafe { mm::munmap(ptr(range), range.len) }
}

/// Moves the pages of `from` to `to` and leaves an empty mapping of the same kind at `from`
/// (`MREMAP_DONTUNMAP`, Linux 5.13 for file mappings).
///
/// # Safety
/// The caller owns both ranges; they have the same length and `from` is one mapping.
pub unsafe fn move_pages_out(from: VirtRange, to: VirtRange) -> Result<()> {
    failpoints::check(Op::Mremap)?;
    debug_assert_eq!(from.len, to.len);
    // SAFETY: the caller owns both ranges.
    unsafe {
        mm::mremap_fixed(
            ptr(from),
            from.len,
            to.len,
            MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP,
            ptr(to),
        )
    }?;
    Ok(())
}

/// Moves the mapping at `from` over any mapping at `to`.
///
/// # Safety
/// The caller owns both ranges; they have the same length and `from` is one mapping.
pub unsafe fn move_mapping(from: VirtRange, to: VirtRange) -> Result<()> {
    failpoints::check(Op::Mremap)?;
    // SAFETY: the caller owns both ranges.
    unsafe { mm::mremap_fixed(ptr(from), from.len, to.len, MremapFlags::MAYMOVE, ptr(to)) }?;
    Ok(())
}

/// Changes the accesses that `range` allows.
///
/// # Safety
/// The caller owns `range`.
pub unsafe fn protect(range: VirtRange, prot: Prot) -> Result<()> {
    failpoints::check(Op::Mprotect)?;
    let flags = MprotectFlags::from_bits_retain(prot.bits());
    // SAFETY: as the caller promised.
    unsafe { mm::mprotect(ptr(range), range.len, flags) }
}

/// Gives the kernel advice about `range`.
///
/// # Safety
/// The caller owns `range`; some advice drops its contents.
pub unsafe fn advise(range: VirtRange, advice: Advice) -> Result<()> {
    failpoints::check(Op::Madvise)?;
    // SAFETY: as the caller promised.
    unsafe { madvise(range, advice) }
}

/// Maps the pages of `range` that are in memory, and allocates those that read a hole (`MADV_POPULATE_READ`,
/// `madvise(2)`).
pub fn populate(range: VirtRange) -> Result<()> {
    // SAFETY: no content changes: every reader gets the same bytes as before.
    unsafe { madvise(range, Advice::PopulateRead) }
}

unsafe fn madvise(range: VirtRange, advice: Advice) -> Result<()> {
    // SAFETY: madvise(2) takes an address, a length and a number; the caller owns the range.
    let answer = unsafe {
        crate::passthrough::by_number()(
            libc::SYS_madvise,
            range.start,
            range.len,
            advice as libc::c_int as usize,
        )
    };
    if answer == 0 { Ok(()) } else { Err(crate::errno::last()) }
}

/// Gives the same advice about many ranges of this process, with few system calls and one flush of the
/// TLB (`process_madvise(2)`). `EINVAL` before Linux 6.13, for advice that drops content.
///
/// # Safety
/// As for [`advise`], for each range.
pub unsafe fn advise_all(ranges: &[VirtRange], advice: Advice) -> Result<()> {
    failpoints::check(Op::ProcessMadvise)?;
    let this = crate::process::pidfd(crate::process::pid())?;
    for part in ranges.chunks(MOST_VECTORS) {
        let mut vectors =
            [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; MOST_VECTORS];
        for (vector, range) in vectors.iter_mut().zip(part) {
            *vector = libc::iovec { iov_base: ptr(*range), iov_len: range.len };
        }
        // SAFETY: process_madvise(2) reads as many vectors as `part` has ranges; the caller owns them.
        let advised = unsafe {
            crate::passthrough::by_number()(
                libc::SYS_process_madvise,
                this.as_raw_fd(),
                vectors.as_ptr(),
                part.len(),
                advice as libc::c_int,
                0,
            )
        };
        if advised < 0 {
            return Err(crate::errno::last());
        }
        if advised as usize != part.iter().map(|range| range.len).sum::<usize>() {
            // It stopped at one of them; the plain call returns the errno for that one.
            for range in part {
                // SAFETY: as the caller promised.
                unsafe { self::advise(*range, advice) }?;
            }
        }
    }
    Ok(())
}

/// The length of a shared segment (`shmctl(2)`).
pub fn segment_bytes(id: i32) -> Result<usize> {
    let mut described = core::mem::MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: the kernel fills it in if it returns zero.
    unsafe {
        match libc::shmctl(id, libc::IPC_STAT, described.as_mut_ptr()) {
            0 => Ok(described.assume_init_ref().shm_segsz),
            _ => Err(crate::errno::last()),
        }
    }
}

fn sharing_flag(sharing: Sharing) -> MapFlags {
    match sharing {
        Sharing::Shared => MapFlags::SHARED,
        Sharing::Private => MapFlags::PRIVATE,
    }
}

fn prot_flags(prot: Prot) -> ProtFlags {
    ProtFlags::from_bits_retain(prot.bits())
}
