//! One session with `criu lazy-pages`, from its first request to its end.
//!
//! ```text
//!  asking ──GET──▶ found? ─▶ answered, at most 256 KiB ─▶ asking
//!    │               └─ no, or it cannot be read ─▶ held until CRIU goes
//!    └──CLOSE, or the end of the stream──▶ over
//! ```
//! A session that cannot answer is held, not ended. If it ended, `criu lazy-pages` would end as well, the kernel would
//! drop its userfaultfd, and the restored process would read zeroes in place of its memory.

use std::io::{self, IoSlice, Read, Write};
use std::time::{Duration, Instant};

use crate::chain::Aside;
use crate::memory::Memory;
use crate::pages::PAGE_BYTES;
use crate::protocol::{self, Layout, Pages, Request};

/// A fault waits behind the answer that is being sent, so answers are short. CRIU asks for up to 4 MiB.
const MOST_PAGES: u64 = 64;

/// The result of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// Requests answered.
    pub requests: u64,
    /// Pages sent.
    pub pages: u64,
    /// From the first request to the last answer.
    pub took: Duration,
}

/// Answers a `criu lazy-pages --page-server` at the other end of `stream` until it is done or goes. `tell` gets the
/// reason if a request cannot be answered.
///
/// # Errors
/// The stream's; [`io::ErrorKind::InvalidData`] if it brings something other than a request of CRIU's.
pub fn serve(
    memory: &Memory,
    stream: &mut (impl Read + Write),
    tell: &dyn Fn(&str),
) -> io::Result<Served> {
    let (mut served, mut began) = (Served::default(), None);
    let (mut layout, mut aside) = (None, Aside::default());
    loop {
        let asked = match protocol::read(stream, &mut layout)? {
            Some(Request::Get(asked)) => asked,
            Some(Request::Close) => {
                stream.write_all(&protocol::CLOSED)?;
                // The side that closes first has to wait for the port.
                drain(stream)?;
                return Ok(served);
            }
            None => return Ok(served),
        };
        let began = *began.get_or_insert_with(Instant::now);
        let layout = layout.expect("a request settles it");
        match answer(memory, stream, layout, asked, &mut aside) {
            Ok(pages) => served.pages += pages,
            Err(Failure::Memory(why)) => {
                tell(&format!(
                    "{why}; process {} waits for {:#x}: end it, it cannot be restored from here",
                    asked.process, asked.address
                ));
                drain(stream)?;
                return Ok(served);
            }
            Err(Failure::Stream(error)) => return Err(error),
        }
        served.requests += 1;
        served.took = began.elapsed();
    }
}

enum Failure {
    /// The pages are not available.
    Memory(String),
    /// CRIU is gone.
    Stream(io::Error),
}

/// Sends the first of the requested pages; returns their number.
fn answer(
    memory: &Memory,
    stream: &mut impl Write,
    layout: Layout,
    asked: Pages,
    aside: &mut Aside,
) -> Result<u64, Failure> {
    let few = Pages { pages: asked.pages.min(MOST_PAGES), ..asked };
    let no_pages = || Failure::Memory("it does not have these pages".into());
    let found = memory.find(few).ok_or_else(no_pages)?;
    // A request that CRIU makes on its own is longer than a page, and shows no need of the program.
    let content = if memory.records() && asked.pages > 1 {
        let read = found.read_aside(aside);
        read.map_err(|error| Failure::Memory(error.to_string()))?
    } else {
        found.bytes()
    };
    let pages = content.len() as u64 / PAGE_BYTES;
    let head = protocol::answer(layout, Pages { pages, ..asked });
    let mut parts = [IoSlice::new(&head), IoSlice::new(content)];
    let mut rest = &mut parts[..];
    while !rest.is_empty() {
        match stream.write_vectored(rest) {
            Ok(0) => return Err(Failure::Stream(io::ErrorKind::WriteZero.into())),
            Ok(sent) => IoSlice::advance_slices(&mut rest, sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The kernel could not read the memory: it is damaged, and the arena's `on_damage` was told.
            Err(error) if cowslip_sys::error::errno_of(&error) == cowslip_sys::Errno::FAULT => {
                return Err(Failure::Memory("the image is damaged there".into()));
            }
            Err(error) => return Err(Failure::Stream(error)),
        }
    }
    Ok(pages)
}

/// Reads until the other end closes.
fn drain(stream: &mut impl Read) -> io::Result<()> {
    io::copy(stream, &mut io::sink()).map(drop)
}
