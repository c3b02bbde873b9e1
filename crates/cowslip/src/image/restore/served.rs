//! Images that another process of this machine has in memory (`cowslip serve`).
//!
//! ```text
//!   client ── request: which image, which arena ──▶ server
//!          ◀── answer: a number; 0: the template follows; 6, once a second: it is being loaded ──
//! ```
//! | request, bytes | |
//! | --- | --- |
//! | 8 | `COWSLIPQ` |
//! | 8 | version, 1 |
//! | 8 | 1: a template; 2: metrics; 3: a template or, while it is being loaded, its chunks |
//! | 16 | identity of the image |
//! | 8 | which of its arenas |
//!
//! The answer is a number of 8 bytes, then the template as sent by [`Template::send`], or the messages of
//! [`Loading::lend`], or a text until the end. A template's descriptors come with the first byte of the answer. All
//! numbers are little-endian. The client checks the user of the listening process: its own, or root.
//!
//! A client that may read the file instead waits two seconds for an answer: a silent server is suspended, or as good as
//! that. It does not wait where the queue of connections is full: connecting does not block.

use std::env;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cowslip_sys::error::{Error, ErrorKind, Result, file_error};
use cowslip_sys::units::VirtRange;
use cowslip_sys::{AsFd, OwnedFd, socket};

use super::lending::Lender;
pub use super::lending::Loading;
use super::options::{OPERATION, RestoreOptions, Strategy, Via, builder};
use crate::arena::Arena;
use crate::image::description::ArenaDescription;
use crate::image::format::Identity;
use crate::image::open::Image;
use crate::progress::{self, OnProgress, Wait};
use crate::template::{Peer, Template};
use crate::thaw::{self, serve};

const MAGIC: [u8; 8] = *b"COWSLIPQ";
const VERSION: u64 = 1;
/// Longest wait for a server that is loading the image, and for each message where the server is the only source.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for a silent server where the file may be read instead.
const SILENCE: Duration = Duration::from_secs(2);
/// Time between two answers that an image is being loaded.
pub const REPEAT: Duration = Duration::from_millis(500);

/// The environment variable that names the socket of a server.
pub const VARIABLE: &str = "COWSLIP_SERVE";

/// A question to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Request {
    /// An arena of an image, as a template.
    Template {
        /// The image.
        image: Identity,
        /// The arena, by its index.
        arena: u32,
    },
    /// Its counters, as text in Prometheus' format.
    Metrics,
    /// A template like [`Self::Template`], or, while it is being loaded, [the loaded part](Loading::lend).
    Content {
        /// The image.
        image: Identity,
        /// The arena, by its index.
        arena: u32,
    },
}

/// The answer of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// The requested data follows.
    Follows,
    /// It does not have that image.
    NotHeld,
    /// The image is larger than the server may hold.
    TooLarge,
    /// It has the most clients that it may have.
    Busy,
    /// It could not load the image: its log says why.
    Failed,
    /// It is loading the image, and [lends](Loading::lend) the loaded part.
    Loading,
    /// It is about to load it: another answer follows. This one is repeated each [`REPEAT`].
    Pending,
    /// It is ending.
    Ending,
}

const ANSWERS: [Answer; 8] = [
    Answer::Follows,
    Answer::NotHeld,
    Answer::TooLarge,
    Answer::Busy,
    Answer::Failed,
    Answer::Loading,
    Answer::Pending,
    Answer::Ending,
];

impl Request {
    /// The length of a request.
    pub const BYTES: usize = 48;

    /// Reads a request; `None` if it is none, or one of another version.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let image = Identity(bytes[24..40].try_into().expect("sixteen"));
        let arena = u32::try_from(word(40));
        match (bytes[..8] == MAGIC && word(8) == VERSION, word(16), arena) {
            (true, 1, Ok(arena)) => Some(Self::Template { image, arena }),
            (true, 2, _) => Some(Self::Metrics),
            (true, 3, Ok(arena)) => Some(Self::Content { image, arena }),
            _ => None,
        }
    }

    /// Asks the server. While the server reports that it is loading, this waits, a minute at most.
    ///
    /// # Errors
    /// `InvalidData` for an unknown answer, `TimedOut` after that minute; an error of the socket.
    pub fn ask(self, stream: &UnixStream) -> io::Result<Answer> {
        self.ask_attended(stream, &mut |_| Ok(())).map(|(answer, _)| answer)
    }

    /// Asks like [`Self::ask`]; `wait` is called before each read. The descriptors are those that arrive with the
    /// answer.
    fn ask_attended(
        self,
        stream: &UnixStream,
        wait: Wait<'_>,
    ) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let (kind, image, arena) = match self {
            Self::Template { image, arena } => (1u64, image.0, arena),
            Self::Metrics => (2, [0; 16], 0),
            Self::Content { image, arena } => (3, image.0, arena),
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(image);
        bytes.extend(u64::from(arena).to_le_bytes());
        // Sent without a signal if the other end has already closed the connection.
        if socket::send(stream.as_fd(), &bytes, &[])? != bytes.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Answer::read(stream, wait)? {
                (Answer::Pending, _) if Instant::now() < deadline => {}
                (Answer::Pending, _) => return Err(io::ErrorKind::TimedOut.into()),
                answered => return Ok(answered),
            }
        }
    }
}

impl Answer {
    fn read(stream: &UnixStream, wait: Wait<'_>) -> io::Result<(Self, Vec<OwnedFd>)> {
        let (mut answer, mut files) = ([0; 8], Vec::new());
        let mut at = 0;
        while at < answer.len() {
            wait(stream)?;
            let (more, came) = socket::receive(stream.as_fd(), &mut answer[at..])?;
            if more == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += more;
            files.extend(came);
        }
        let answer = usize::try_from(u64::from_le_bytes(answer)).ok();
        let answer = answer.and_then(|number| ANSWERS.get(number).copied());
        answer.map(|answer| (answer, files)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Sends it to the client.
    ///
    /// # Errors
    /// An error of the socket.
    pub fn write(self, mut stream: &UnixStream) -> io::Result<()> {
        stream.write_all(&self.to_bytes())
    }

    fn to_bytes(self) -> [u8; 8] {
        let number = ANSWERS.iter().position(|answer| *answer == self).unwrap_or(ANSWERS.len() - 1);
        (number as u64).to_le_bytes()
    }

    fn explain(self) -> &'static str {
        match self {
            Self::Follows | Self::Loading | Self::Pending => "",
            Self::NotHeld => "the server does not serve this image",
            Self::TooLarge => "the image is larger than what the server may hold",
            Self::Busy => "the server has as many clients as it may",
            Self::Failed => "the server could not load the image",
            Self::Ending => "the server is ending",
        }
    }
}

/// A wait for a server, which may be silent for `silence`. The caller decides from time to time to go on or to break it
/// off.
struct Attention<'a> {
    socket: &'a Path,
    silence: Duration,
    progress: OnProgress<'a>,
}

impl Attention<'_> {
    fn wait(&mut self, stream: &UnixStream) -> io::Result<()> {
        progress::readable(stream, self.silence, self.progress)
    }

    /// The error of a wait that the socket refused, or the caller broke off.
    fn error(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::Interrupted => progress::broken_off(OPERATION),
            _ => file_error("ask a server for an image", self.socket, error),
        }
    }

    /// Receives the template. Its descriptors came with the answer.
    fn receive(&mut self, stream: &UnixStream, files: Vec<OwnedFd>) -> Result<Template> {
        let peer = Peer::of_this_user(stream).map_err(|error| self.error(error))?;
        Template::receive_from(peer, files, &mut |stream| self.wait(stream))
    }
}

/// Tells the client that a template follows, and sends it: in one message, if the socket has room for it.
///
/// # Errors
/// Those of [`Template::send`].
pub fn hand_out(template: &Template, stream: &UnixStream) -> Result<()> {
    template.send_after(&Answer::Follows.to_bytes(), stream)
}

/// Connects to a server at `path`, of this user or of root, without waiting. Reads and writes time out after a minute
/// of silence.
///
/// # Errors
/// `PermissionDenied` if another user's process listens there, `WouldBlock` if its queue is full; an error of the
/// socket.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    connect_for(path, PATIENCE)
}

fn connect_for(path: &Path, silence: Duration) -> io::Result<UnixStream> {
    let stream = UnixStream::from(socket::connect_at_once(path)?);
    Peer::of_this_user(&stream)?;
    stream.set_read_timeout(Some(silence))?;
    stream.set_write_timeout(Some(silence))?;
    Ok(stream)
}

/// A server that has at least a part of the request.
struct Asked {
    stream: UnixStream,
    answer: Answer,
    files: Vec<OwnedFd>,
}

/// Asks the server; a refusal is an error.
fn ask(request: Request, attention: &mut Attention<'_>) -> Result<Asked> {
    let Attention { socket, silence, .. } = *attention;
    let stream = connect_for(socket, silence).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::new(ErrorKind::Busy, OPERATION)
            .of_file(socket)
            .because("as many wait for the server's answer as may"),
        _ => attention.error(error),
    })?;
    let answer = request.ask_attended(&stream, &mut |stream| attention.wait(stream));
    match answer.map_err(|error| attention.error(error))? {
        (answer @ (Answer::Follows | Answer::Loading), files) => {
            Ok(Asked { stream, answer, files })
        }
        (answer, _) => {
            let is_busy = answer == Answer::Busy;
            let kind = if is_busy { ErrorKind::Busy } else { ErrorKind::Unsupported };
            let error = Error::new(kind, OPERATION).of_file(socket).because(answer.explain());
            Err(if answer == Answer::Failed { error.advise("see its log") } else { error })
        }
    }
}

impl Image {
    /// The template of one of the image's arenas that the server at `socket` has in memory: to make
    /// [clones](Template::map) of it, which stay on that memory. Waits for an image that is being loaded.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the server does not have it, with the reason, [`ErrorKind::Busy`] if it has too
    /// many clients; an error of the socket; those of [`Template::receive`].
    pub fn template_via(&self, socket: &Path, arena: u32) -> Result<Template> {
        self.template_via_attended(socket, arena, &mut |_| ControlFlow::Continue(()))
    }

    /// Gets a template like [`Self::template_via`]; while it waits for the server, it calls `progress` some ten times a
    /// second.
    ///
    /// # Errors
    /// Those too; [`ErrorKind::Busy`] if `progress` broke it off.
    pub fn template_via_attended(
        &self,
        socket: &Path,
        arena: u32,
        progress: OnProgress<'_>,
    ) -> Result<Template> {
        let request = Request::Template { image: self.identity(), arena };
        let mut attention = Attention { socket, silence: PATIENCE, progress };
        let Asked { stream, files, .. } = ask(request, &mut attention)?;
        attention.receive(&stream, files)
    }
}

/// An arena that a server has.
pub(super) enum Served {
    /// An arena made of all of it.
    Whole(Arena),
    /// The server, which has a part so far.
    Loading(Lender),
}

/// Restores from a server, if one serves the image. A server that the caller named must have it.
pub(super) fn restore(
    image: &Image,
    arena: u32,
    described: &ArenaDescription,
    options: &RestoreOptions,
    progress: OnProgress<'_>,
) -> Result<Option<Served>> {
    let socket = match &options.via {
        _ if options.record => return Ok(None),
        Via::File => return Ok(None),
        Via::Server(socket) => socket.clone(),
        Via::Environment => match env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => PathBuf::from(path),
            None => return Ok(None),
        },
    };
    let may_do_without = options.via == Via::Environment;
    let silence = if may_do_without { SILENCE } else { PATIENCE };
    let mut is_over = false;
    let mut progress = |now| {
        let answer = progress(now);
        is_over |= answer.is_break();
        answer
    };
    let attention = Attention { socket: &socket, silence, progress: &mut progress };
    match get(image, arena, described, options, attention) {
        Err(error) if is_over || !may_do_without => Err(error),
        got => Ok(got.ok()),
    }
}

fn get(
    image: &Image,
    arena: u32,
    described: &ArenaDescription,
    options: &RestoreOptions,
    mut attention: Attention<'_>,
) -> Result<Served> {
    let request = Request::Content { image: image.identity(), arena };
    let Asked { stream, answer, files } = ask(request, &mut attention)?;
    if answer == Answer::Loading {
        attention.wait(&stream).map_err(|error| attention.error(error))?;
        return Lender::receive(stream, described.length_bytes).map(Served::Loading);
    }
    let range = |offset: u64, length: u64| VirtRange::new(offset as usize, length as usize);
    let pieces = described.pieces.iter();
    let pieces: Vec<_> =
        pieces.map(|piece| (range(piece.offset_bytes, piece.length_bytes), piece.prot())).collect();
    let is_eager = options.strategy == Strategy::Eager;
    let template = attention.receive(&stream, files)?;
    let restored = template.restore_pieces(builder(described, options)?, &pieces)?;
    if is_eager {
        serve::ensure(restored.shared());
        thaw::end_borrowing(restored.shared())?;
    }
    Ok(Served::Whole(restored))
}
