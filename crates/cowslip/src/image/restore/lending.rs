//! Lends an image that one process is loading to others, chunk by chunk.
//!
//! ```text
//!   client ── number of a chunk ──▶ server   brings it in before what nobody waits for
//!          ◀── 0: it is there ──
//!   client  copies it from the server's file, checks it, and only then shows it
//! ```
//! | server to client, bytes | |
//! | --- | --- |
//! | 1 | 0, and with it a descriptor for reading of a file like the arena's |
//! | 8, for each chunk asked for | 0: it is there; 1: it cannot be had |
//!
//! * **Never zeroes.** A hole in a file in memory reads as zeroes, through a private mapping too, so a file that is
//!   being filled is never mapped. A copy from it is accepted only if it has the checksum in the image.
//! * **No client changes what others see.** The file is the arena's, if a process that gets it cannot
//!   change it: in a tmpfs of the server's own. A memfd that is being filled cannot be sealed, so
//!   each client has one of its own, in which its last [`MOST_COPIES`] chunks are copies.
//! * **I6, nobody hangs.** A chunk that a server does not deliver within [`PATIENCE`] is read from the image, like all
//!   that follow.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cowslip_sys::error::{During, Error, ErrorKind, Result, errno_of};
use cowslip_sys::memfile::{self, MemfdKind, Seals};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::CHUNK_BYTES;
use cowslip_sys::{AsFd, Errno, OwnedFd, handed_out, socket};

use super::options::{RestoreOptions, Via};
use super::restored::Restored;
use crate::arena::state::Chunk;
use crate::image::open::Image;
use crate::mapping::backing_file::{BackingFile, Pages};
use crate::template::{File, Template};

const LEND: &str = "lend an image that is being loaded";
const BORROW: &str = "borrow an image that is being loaded";
/// How long to wait for a server after a request for a chunk: a thread may have touched it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Chunks that a client may be reading at a time: more than a restore has threads.
const MOST_COPIES: usize = 32;
const THERE: u64 = 0;
const MISSING: u64 = 1;

/// An arena of an image that is being loaded into memory, for other processes. It is never written
/// to.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// # use cowslip::image::{Image, SaveOptions, save};
/// # use cowslip::{Arena, units::ByteCount};
/// # let path = std::env::temp_dir().join(format!("doc-loading-{}.cowslip", std::process::id()));
/// # let arena = Arena::new(ByteCount::mib(64))?;
/// # let mut words = arena.slice::<u64>(1 << 20)?;
/// # words.fill(7);
/// # let mut proceed = |_| std::ops::ControlFlow::Continue(());
/// # save(&[&arena.freeze()?], &path, &SaveOptions::default(), &mut proceed)?;
/// let loading = Image::open(&path)?.load(0)?;
/// let (client, server) = UnixStream::pair().unwrap();
/// client.shutdown(std::net::Shutdown::Write).unwrap(); // it asks for no chunk
/// loading.lend(&server)?;
/// let template = loading.finish()?; // all of it
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), cowslip::Error>(())
/// ```
#[derive(Debug)]
pub struct Loading {
    restored: Restored,
}

impl Image {
    /// Begins to load one of its arenas into this process' memory, for other processes. Without userfaultfd all of it
    /// is loaded when this returns.
    ///
    /// # Errors
    /// Those of [`Self::restore`].
    pub fn load(&self, arena: u32) -> Result<Loading> {
        let options = RestoreOptions { via: Via::File, ..RestoreOptions::default() };
        let restored = self.restore(arena, &options, &mut |_| ControlFlow::Continue(()))?;
        Ok(Loading { restored })
    }
}

impl Loading {
    /// Lends the loaded part, and brings in requested chunks, until the process at the other end, which restores,
    /// closes the connection or is silent for as long as the socket's time-out.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn lend(&self, mut socket: &UnixStream) -> Result<()> {
        let shared = self.restored.arena.shared();
        let whole = Arc::clone(shared.lock().file_at(shared.range.start));
        whole.check()?;
        let mut lent = Lent::new(whole).during(LEND)?;
        socket::send(socket.as_fd(), &[0], &[lent.for_client().during(LEND)?.as_fd()])
            .during(LEND)?;
        let mut chunk = [0; 8];
        loop {
            match socket.read_exact(&mut chunk) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(Error::from_errno(LEND, errno_of(&error))),
            }
            let chunk = u64::from_le_bytes(chunk);
            let is_there = self.bring_in(chunk) && lent.show(chunk).is_ok();
            let answer = if is_there { THERE } else { MISSING };
            let told = socket.write_all(&answer.to_le_bytes());
            told.map_err(|error| Error::from_errno(LEND, errno_of(&error)))?;
        }
    }

    fn bring_in(&self, chunk: u64) -> bool {
        let shared = self.restored.arena.shared();
        let chunks = shared.range.len / CHUNK_BYTES;
        let Some(chunk) = usize::try_from(chunk).ok().filter(|chunk| *chunk < chunks) else {
            return false;
        };
        let state = shared.lock_restored(shared.chunk_range(chunk, 1));
        !matches!(state.chunk(chunk), Chunk::Missing | Chunk::Poisoned)
    }

    /// Waits until all of it is loaded; any number of threads may wait.
    ///
    /// # Errors
    /// The first chunk that is damaged or could not be read; those of
    /// [`crate::Frozen::into_template`].
    pub fn finish(&self) -> Result<Template> {
        while !self.restored.wait(Duration::from_secs(3600))? {}
        self.restored.arena.freeze()?.into_template()
    }
}

/// The file that a client reads.
struct Lent {
    whole: Arc<BackingFile>,
    /// The client's own, with the chunks that it shows, oldest first; `None` if it reads the
    /// arena's.
    copies: Option<(OwnedFd, VecDeque<u64>)>,
}

impl Lent {
    fn new(whole: Arc<BackingFile>) -> Result<Self, Errno> {
        if whole.pages == Pages::HugeTmpfs
            && handed_out::forbid_changes(whole.for_readers()?.as_fd()).is_ok()
        {
            return Ok(Self { whole, copies: None });
        }
        let len_bytes = memfile::len_bytes(whole.fd())?;
        let file = memfile::memfd("cowslip-lent", MemfdKind::Shmem, len_bytes)?;
        memfile::seal(file.as_fd(), Seals::SHRINK | Seals::GROW)?;
        Ok(Self { whole, copies: Some((file, VecDeque::new())) })
    }

    fn for_client(&self) -> Result<OwnedFd, Errno> {
        match &self.copies {
            Some((file, _)) => memfile::reopen_read_only(file.as_fd()),
            None => self.whole.for_readers(),
        }
    }

    /// Has the file show a chunk of the arena that is loaded, and so never changes any more.
    fn show(&mut self, chunk: u64) -> Result<(), Errno> {
        let Some((file, shown)) = &mut self.copies else { return Ok(()) };
        let place = |chunk| chunk * CHUNK_BYTES as u64;
        let mut content = vec![0; CHUNK_BYTES];
        memfile::read_exact_at(self.whole.fd(), &mut content, place(chunk))?;
        memfile::write_at(file.as_fd(), &content, place(chunk))?;
        shown.push_back(chunk);
        if shown.len() > MOST_COPIES
            && let Some(oldest) = shown.pop_front().filter(|oldest| !shown.contains(oldest))
        {
            memfile::punch_hole(file.as_fd(), place(oldest), CHUNK_BYTES as u64)?;
        }
        Ok(())
    }
}

/// A server that is loading an image.
#[derive(Debug)]
pub(super) struct Lender {
    file: File,
    /// `None` after it has failed once.
    server: Mutex<Option<File>>,
}

impl Lender {
    /// Receives the first message of [`Loading::lend`].
    pub(super) fn receive(stream: UnixStream, length_bytes: u64) -> Result<Self> {
        let mut first = [0];
        let (_, files) = socket::receive(stream.as_fd(), &mut first).during(BORROW)?;
        let corrupt = |why| Error::new(ErrorKind::Corrupt, BORROW).because(why);
        let [file] = <[_; 1]>::try_from(files)
            .map_err(|_| corrupt("one descriptor should have come with the answer"))?;
        if memfile::len_bytes(file.as_fd()).during(BORROW)? < length_bytes {
            return Err(corrupt("the server's file is too short for the arena"));
        }
        let limits =
            [stream.set_read_timeout(Some(PATIENCE)), stream.set_write_timeout(Some(PATIENCE))];
        for limited in limits {
            limited.map_err(|error| Error::from_errno(BORROW, errno_of(&error)))?;
        }
        let hold = |fd| File::new(ReservedFd::hold(fd)).during(BORROW);
        Ok(Self { file: hold(file)?, server: Mutex::new(Some(hold(stream.into())?)) })
    }

    /// Copies a chunk from the server, which brings it in first; `false` if it cannot.
    pub(super) fn read(&self, chunk: u32, content: &mut [u8]) -> bool {
        let mut read = || {
            let at = u64::from(chunk) * CHUNK_BYTES as u64;
            memfile::read_exact_at(self.file.fd()?, content, at)
        };
        self.has(chunk) && read().is_ok()
    }

    fn has(&self, chunk: u32) -> bool {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = server.as_ref().map(|server| ask(server, chunk));
        match answer {
            Some(Ok(answer)) => answer == THERE,
            None => false,
            Some(Err(_)) => {
                *server = None;
                false
            }
        }
    }
}

fn ask(server: &File, chunk: u32) -> Result<u64, Errno> {
    let question = u64::from(chunk).to_le_bytes();
    if socket::send(server.fd()?, &question, &[])? != question.len() {
        return Err(Errno::PIPE);
    }
    let (mut answer, mut at) = ([0; 8], 0);
    while at < answer.len() {
        match socket::receive(server.fd()?, &mut answer[at..])? {
            (0, _) => return Err(Errno::PIPE),
            (bytes, _) => at += bytes,
        }
    }
    Ok(u64::from_le_bytes(answer))
}
