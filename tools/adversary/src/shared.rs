//! A file that the driver and every process of a program map: errors, the present calls, counts, and messages
//! between relatives.
#![allow(unsafe_code)]

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use std::os::fd::AsRawFd;
use std::path::Path;

/// The most processes and threads of a program, which its text can number.
pub(crate) const PROCESSES: usize = 64;
pub(crate) const THREADS: usize = 8;
pub(crate) const COUNTERS: usize = 8;
const STREAMS: usize = 1024;
const LETTERS: usize = 256;

/// A parent's write to a child's page.
#[derive(Default)]
pub(crate) struct Letter {
    pub(crate) process: AtomicUsize,
    pub(crate) region: AtomicUsize,
    pub(crate) page: AtomicUsize,
    pub(crate) seed: AtomicU64,
    /// The write has happened; before that, its writer may have been killed.
    pub(crate) is_written: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) calls: AtomicU64,
    pub(crate) forks: AtomicU64,
    pub(crate) processes: AtomicU64,
    pub(crate) pages: AtomicU64,
    /// `O_DIRECT` refused by the file system, and a parent's memory refused to its child.
    pub(crate) refused: AtomicU64,
}

#[repr(C)]
pub(crate) struct Shared {
    failed: AtomicU32,
    text: [AtomicU8; 2048],
    pub(crate) totals: Totals,
    /// The call of each thread, and its id: `call + 1 << 32 | tid`; 0 when it has ended.
    places: [[AtomicU64; THREADS]; PROCESSES],
    /// Children that wait for their parent's permission to begin, parents that wait for their child's.
    pub(crate) held: [AtomicU32; PROCESSES],
    /// The intended values of a process's counters, never less than the real ones.
    pub(crate) intended: [[AtomicU64; COUNTERS]; PROCESSES],
    streams: AtomicUsize,
    /// The sequence number that each stream is about to write.
    pub(crate) sequences: [AtomicU64; STREAMS],
    letters: AtomicUsize,
    post: [Letter; LETTERS],
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(core::ptr::null_mut());

/// The performer's mapping.
pub(crate) fn shared() -> &'static Shared {
    // SAFETY: the pointer is null before `adopt`; after it, it is to a mapping that is never unmapped.
    unsafe { SHARED.load(Ordering::Relaxed).as_ref() }.expect("adopted before the first call")
}

/// Maps it in the performer.
pub(crate) fn adopt(path: &Path) -> std::io::Result<()> {
    SHARED.store(core::ptr::from_ref(map(path)?).cast_mut(), Ordering::Relaxed);
    Ok(())
}

fn map(path: &Path) -> std::io::Result<&'static Shared> {
    let file = std::fs::File::options().read(true).write(true).open(path)?;
    let size = size_of::<Shared>();
    file.set_len(size as u64)?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: this is a new mapping, of a file of the same length. Zeroes are a valid `Shared`: it consists
    // of atomics.
    unsafe {
        let at = libc::mmap(
            core::ptr::null_mut(),
            size,
            prot,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            file.as_raw_fd(),
            0,
        );
        at.cast::<Shared>()
            .as_ref()
            .filter(|_| at != libc::MAP_FAILED)
            .ok_or_else(std::io::Error::last_os_error)
    }
}

/// The driver's mapping.
pub(crate) struct Mapped(&'static Shared);

impl Mapped {
    /// A new mapping, all zeroes.
    pub(crate) fn new(path: &Path) -> std::io::Result<Self> {
        let _ = std::fs::remove_file(path);
        std::fs::File::create_new(path)?;
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
        Ok(Self(map(path)?))
    }
}

impl core::ops::Deref for Mapped {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        self.0
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it with this length; the reference ends with this value.
        unsafe { libc::munmap(core::ptr::from_ref(self.0).cast_mut().cast(), size_of::<Shared>()) };
    }
}

impl Shared {
    /// Keeps the first failure.
    pub(crate) fn fail(&self, text: &str) {
        if self.failed.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        for (place, byte) in self.text.iter().zip(text.bytes()) {
            place.store(byte, Ordering::Relaxed);
        }
        self.failed.store(2, Ordering::Release);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire) != 0
    }

    pub(crate) fn failure(&self) -> Option<String> {
        let bytes = self.text.iter().map(|byte| byte.load(Ordering::Relaxed));
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        self.has_failed().then(|| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn enter(&self, process: usize, thread: usize, call: usize, tid: u32) {
        let place = (call as u64 + 1) << 32 | u64::from(tid);
        self.places[process][thread].store(place, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, process: usize, thread: usize) {
        self.places[process][thread].store(0, Ordering::Relaxed);
    }

    /// Process, thread, call and thread id of every thread in a call.
    pub(crate) fn places(&self) -> Vec<(usize, usize, usize, u32)> {
        let mut all = Vec::new();
        for (process, threads) in self.places.iter().enumerate() {
            for (thread, place) in threads.iter().enumerate() {
                let place = place.load(Ordering::Relaxed);
                if place != 0 {
                    all.push((process, thread, (place >> 32) as usize - 1, place as u32));
                }
            }
        }
        all
    }

    /// The index of a new stream in `sequences`, if one is left.
    pub(crate) fn new_stream(&self) -> Option<usize> {
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        (stream < STREAMS).then_some(stream)
    }

    /// Announces a write to a page of a child. The child is held, and reads it when it is released.
    pub(crate) fn send(
        &self,
        process: usize,
        region: usize,
        page: usize,
        seed: u64,
    ) -> Option<&Letter> {
        let letter = self.post.get(self.letters.fetch_add(1, Ordering::Relaxed))?;
        letter.region.store(region, Ordering::Relaxed);
        letter.page.store(page, Ordering::Relaxed);
        letter.seed.store(seed, Ordering::Relaxed);
        letter.process.store(process, Ordering::Relaxed);
        Some(letter)
    }

    pub(crate) fn letters(&self, process: usize) -> impl Iterator<Item = &Letter> {
        self.post.iter().filter(move |letter| letter.process.load(Ordering::Relaxed) == process)
    }
}
