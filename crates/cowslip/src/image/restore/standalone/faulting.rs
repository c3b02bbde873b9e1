#![allow(unsafe_code)]
//! Anonymous memory that a thread fills when it is touched.
//!
//! ```text
//!   missing    who touches a page waits in userfaultfd ──▶ [serve] reads the chunk, checks it
//!     │ UFFDIO_COPY of 4 KiB or 2 MiB, or UFFDIO_MOVE of 2 MiB; who waits is woken
//!     ▼
//!   there      anonymous memory, nobody's but the program's
//!   buried     the chunk is damaged: an empty file is mapped, an access is a SIGBUS; who waits is woken
//! ```
//! * **Checked before it is seen.** Pages come from a chunk with a verified checksum.
//! * **Never zeroes.** All allocated pieces are registered before any other code has their addresses, and stay so until
//!   they are unmapped. Children do not get them: no thread would serve their faults.
//! * **Nobody hangs.** Each fault ends in a page or in a burial. If even that fails, for lack of mappings
//!   (`vm.max_map_count`), the process is aborted.
//!
//! # Safety
//! The space belongs to this module, page by page until a page is filled.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::memory::{Advice, Prot, Sharing};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::uffd::{self, Features, Outcome, RegisterMode, Uffd};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, Errno, process, waiting};

use super::super::OnDamage;
use super::{OPERATION, Pieces, StandaloneMode, parts};
use crate::arena::mapping::{OwnSpace, OwnedRange};
use crate::image::Image;
use crate::image::chunk::Scratch;

/// Chunks kept for further pages of theirs: 64 MiB. Otherwise scattered touches would read 2 MiB each.
const KEPT_CHUNKS: usize = 32;

/// The thread that serves faults.
#[derive(Debug)]
pub(super) struct Server {
    tools: Arc<Tools>,
    thread: Option<JoinHandle<()>>,
}

/// Holds the registration: waiting threads are released when the last reference to the tools is
/// dropped.
#[derive(Debug)]
pub(super) struct Lifeline {
    _tools: Arc<Tools>,
}

#[derive(Debug)]
struct Tools {
    uffd: Uffd<ReservedFd>,
    wake: ReservedFd,
    closing: AtomicBool,
}

impl Server {
    /// Maps `pieces` empty, and fills them from then on.
    pub(super) fn start(
        image: Image,
        arena: u32,
        way: StandaloneMode,
        space: OwnedRange,
        pieces: Pieces,
        on_damage: Option<OnDamage>,
    ) -> Result<(Self, Lifeline)> {
        let uffd = open(way)?;
        let advice = match way {
            StandaloneMode::UffdCopy4k => Advice::NoHugePage,
            _ => Advice::HugePage,
        };
        for (piece, prot) in &pieces {
            let place = space.part(*piece);
            place.map_anonymous(*prot).during(OPERATION)?;
            // Best effort: it is only faster.
            let _ = place.advise(advice);
            place.advise(Advice::DontFork).during(OPERATION)?;
            uffd.register(*piece, RegisterMode::MISSING).during(OPERATION)?;
        }
        let wake = ReservedFd::hold(process::eventfd().during(OPERATION)?);
        let tools = Arc::new(Tools { uffd, wake, closing: AtomicBool::new(false) });
        let grave = memfile::memfd("cowslip-lost", MemfdKind::Shmem, 0).during(OPERATION)?;
        let filling = Filling {
            tools: Arc::clone(&tools),
            image,
            arena,
            step: if way == StandaloneMode::UffdCopy4k { page_size_bytes() } else { CHUNK_BYTES },
            space,
            pieces,
            on_damage,
            scratch: Scratch::default(),
            kept: Vec::new(),
            stage: (way == StandaloneMode::UffdMove).then(Stage::new).transpose()?,
            damaged: None,
            grave: ReservedFd::hold(grave),
        };
        let thread = {
            // The thread inherits a mask that blocks every signal: handlers are the program's.
            let _blocked = process::BlockedSignals::enter();
            std::thread::Builder::new().name("cowslip-restore".into()).spawn(move || filling.run())
        };
        let thread = thread.map_err(|error| {
            Error::from_errno(OPERATION, cowslip_sys::error::errno_of(&error))
                .because("no thread can be started")
        })?;
        let server = Self { tools: Arc::clone(&tools), thread: Some(thread) };
        Ok((server, Lifeline { _tools: tools }))
    }
}

fn open(way: StandaloneMode) -> Result<Uffd<ReservedFd>> {
    let (fd, _) = uffd::open().during(OPERATION)?;
    let moves = way == StandaloneMode::UffdMove;
    let features = if moves { Features::MOVE } else { Features::empty() };
    Uffd::new(ReservedFd::hold(fd), features).map_err(|errno| match errno {
        Errno::INVAL if moves => Error::new(ErrorKind::Unsupported, OPERATION)
            .because("this kernel has no UFFDIO_MOVE (Linux 6.8)"),
        errno => Error::from_errno(OPERATION, errno),
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tools.closing.store(true, Relaxed);
        process::notify(self.tools.wake.as_fd());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Filling {
    tools: Arc<Tools>,
    image: Image,
    arena: u32,
    /// Bytes that a fault brings in.
    step: usize,
    space: OwnedRange,
    pieces: Pieces,
    on_damage: Option<OnDamage>,
    scratch: Scratch,
    /// Decoded chunks, the latest last.
    kept: Vec<(u32, Vec<u8>)>,
    stage: Option<Stage>,
    /// The chunk for which damage was reported last.
    damaged: Option<u32>,
    grave: ReservedFd,
}

impl Filling {
    fn run(mut self) {
        let mut addresses = Vec::new();
        while !self.tools.closing.load(Relaxed) {
            let fds = [self.tools.uffd.as_fd(), self.tools.wake.as_fd()];
            if process::wait_readable(&fds, &mut [false; 2], None).is_err() {
                // If the wait is refused, it polls.
                let _ = waiting::nap(Duration::from_millis(1));
            }
            if self.tools.uffd.read_faults(|address| addresses.push(address)).is_err() {
                break;
            }
            let step = self.step;
            addresses.iter_mut().for_each(|address| *address &= !(step - 1));
            addresses.sort_unstable();
            addresses.dedup();
            addresses.drain(..).for_each(|start| self.serve(VirtRange::new(start, step)));
        }
    }

    /// Fills `wanted`, or buries the part that could not be filled.
    fn serve(&mut self, wanted: VirtRange) {
        let chunk = ((wanted.start - self.space.start) / CHUNK_BYTES) as u32;
        let (error, rest) = match self.fill(chunk, wanted) {
            Ok(()) => return,
            Err(failed) => failed,
        };
        if self.damaged.replace(chunk) != Some(chunk)
            && let Some(OnDamage(tell)) = &self.on_damage
        {
            let start = self.space.start + chunk as usize * CHUNK_BYTES;
            let range = VirtRange::new(start, CHUNK_BYTES);
            let _ = panic::catch_unwind(AssertUnwindSafe(|| tell(&error, range)));
        }
        for (part, prot) in parts(&self.pieces, rest) {
            let at = (part.start - self.space.start) as u64;
            // The file is empty: every access is beyond its end.
            let (part, grave) = (self.space.part(part), self.grave.as_fd());
            if part.map_file(grave, at, Sharing::Shared, prot).is_err() {
                std::process::abort();
            }
        }
        let _ = self.tools.uffd.wake(wanted);
    }

    fn fill(&mut self, chunk: u32, wanted: VirtRange) -> Result<(), (Error, VirtRange)> {
        let start = self.space.start + chunk as usize * CHUNK_BYTES;
        let read = match &mut self.stage {
            Some(stage) => {
                let content = stage.content_mut();
                self.image.read_chunk_with(&mut self.scratch, self.arena, chunk, content)
            }
            None => self.keep(chunk),
        };
        read.map_err(|error| (error, wanted))?;
        for (part, prot) in parts(&self.pieces, wanted) {
            let mut rest = part;
            while !rest.is_empty() {
                let at = rest.start - start;
                let moved = match &self.stage {
                    // SAFETY: the stage belongs to this thread, which does not read this part of it again.
                    Some(stage) if prot == Prot::RW => unsafe {
                        self.tools.uffd.move_pages(rest, stage.0.start + at)
                    },
                    _ => Err(Errno::BUSY),
                };
                let filled = match moved {
                    // Another protection, or a page that the stage does not own exclusively at this
                    // moment.
                    Err(Errno::BUSY) => {
                        let content = &self.content()[at..][..rest.len];
                        self.tools.uffd.copy(rest, content)
                    }
                    moved => moved,
                };
                let done = match filled {
                    Ok(Outcome::Done) => rest.len,
                    Ok(Outcome::Again { done_bytes }) => done_bytes as usize,
                    Ok(Outcome::AlreadyMapped) => page_size_bytes().min(rest.len),
                    Err(errno) => {
                        let rest = VirtRange::between(rest.start, wanted.end());
                        return Err((Error::from_errno(OPERATION, errno).on(rest), rest));
                    }
                };
                if done == 0 {
                    std::thread::yield_now();
                }
                rest = VirtRange::between(rest.start + done, rest.end());
            }
        }
        let _ = self.tools.uffd.wake(wanted);
        Ok(())
    }

    /// The content of the chunk that was read last.
    fn content(&self) -> &[u8] {
        match (&self.stage, self.kept.last()) {
            (Some(stage), _) => stage.content(),
            (None, Some((_, content))) => content,
            (None, None) => &[],
        }
    }

    /// Makes the chunk the latest of those kept.
    fn keep(&mut self, chunk: u32) -> Result<()> {
        if let Some(at) = self.kept.iter().position(|(kept, _)| *kept == chunk) {
            self.kept[at..].rotate_left(1);
            return Ok(());
        }
        let mut content = match self.kept.len() {
            KEPT_CHUNKS => self.kept.remove(0).1,
            _ => vec![0; CHUNK_BYTES],
        };
        self.image.read_chunk_with(&mut self.scratch, self.arena, chunk, &mut content)?;
        self.kept.push((chunk, content));
        Ok(())
    }
}

/// Memory of one chunk, from which pages are moved.
struct Stage(OwnSpace);

impl Stage {
    fn new() -> Result<Self> {
        let space = OwnSpace::reserve(CHUNK_BYTES, CHUNK_BYTES).during(OPERATION)?;
        space.map_anonymous(Prot::RW).during(OPERATION)?;
        let _ = space.advise(Advice::HugePage);
        // A page shared with a child could not be moved.
        space.advise(Advice::DontFork).during(OPERATION)?;
        Ok(Self(space))
    }

    fn content(&self) -> &[u8] {
        // SAFETY: mapped as long as the value, and borrowed with it.
        unsafe { std::slice::from_raw_parts(self.0.start as *const u8, self.0.len) }
    }

    fn content_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.start as *mut u8, self.0.len) }
    }
}
