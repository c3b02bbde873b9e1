//! The protocol of `criu lazy-pages` and a page server (`criu/page-xfer.c`, `struct page_server_iov`).
//!
//! ```text
//!  criu                                  server
//!   GET pages, address, process ──────▶
//!                               ◀────── ADD_F|PRESENT pages, address, process, and the pages
//!   CLOSE ────────────────────────────▶
//!                               ◀────── i32 0
//! ```
//! CRIU takes answers in the order of its requests and reads none that it did not ask for. An answer may have fewer
//! pages than were asked for; CRIU then asks for the rest again.

use std::io::{self, Read};

const GET: u32 = 7;
const ADD_WITH_FLAGS: u32 = 6;
const CLOSE: u32 = 0x1023;
const FORCE_CLOSE: u32 = 0x1024;
const COMMAND_MASK: u32 = 0xFFFF;
/// `PE_PRESENT`, in the place of flags.
const PRESENT: u32 = 1 << 2 << 16;
/// CRIU asks for at most 1024 pages at a time, and no address is below this.
const LEAST_ADDRESS: u64 = 4096;
const LONG_BYTES: usize = 32;
const SHORT_BYTES: usize = 24;

/// The width of the count of pages. It is not announced; the first request shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// 32 bits, up to CRIU 4.1.
    Short,
    /// 64 bits, and 32 unused bits before them, since CRIU 4.2.
    Long,
}

/// A request of CRIU's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Get(Pages),
    Close,
}

/// Pages of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pages {
    pub(crate) process: u64,
    pub(crate) address: u64,
    pub(crate) pages: u64,
}

/// Reads a request; `None` at the end of the stream. The first one settles the layout.
pub(crate) fn read(
    stream: &mut impl Read,
    layout: &mut Option<Layout>,
) -> io::Result<Option<Request>> {
    let mut bytes = [0; LONG_BYTES];
    let first = loop {
        match stream.read(&mut bytes[..SHORT_BYTES]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            first => break first?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut bytes[first..SHORT_BYTES])?;
    let narrow = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let wide = |bytes: &[u8; LONG_BYTES], at: usize| {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    };
    match narrow(0) & COMMAND_MASK {
        // The rest of the message does not matter.
        CLOSE | FORCE_CLOSE => return Ok(Some(Request::Close)),
        GET => {}
        other => return Err(invalid(format!("command {other} is none that a page server has"))),
    }
    let guess = if wide(&bytes, 8) < LEAST_ADDRESS { Layout::Long } else { Layout::Short };
    let asked = match layout.get_or_insert(guess) {
        Layout::Short => {
            Pages { pages: narrow(4).into(), address: wide(&bytes, 8), process: wide(&bytes, 16) }
        }
        Layout::Long => {
            stream.read_exact(&mut bytes[SHORT_BYTES..])?;
            Pages { pages: wide(&bytes, 8), address: wide(&bytes, 16), process: wide(&bytes, 24) }
        }
    };
    if asked.pages == 0 || asked.address % crate::pages::PAGE_BYTES != 0 {
        return Err(invalid(format!("{asked:x?} are no pages")));
    }
    Ok(Some(Request::Get(asked)))
}

/// The header before the pages of an answer.
pub(crate) fn answer(layout: Layout, sent: Pages) -> Vec<u8> {
    let command = (ADD_WITH_FLAGS | PRESENT).to_ne_bytes();
    let places = [sent.address.to_ne_bytes(), sent.process.to_ne_bytes()].concat();
    match layout {
        // At most as many as were requested, and those fitted.
        Layout::Short => [&command[..], &(sent.pages as u32).to_ne_bytes(), &places].concat(),
        Layout::Long => [&command[..], &[0; 4], &sent.pages.to_ne_bytes(), &places].concat(),
    }
}

/// The answer to [`Request::Close`].
pub(crate) const CLOSED: [u8; 4] = [0; 4];

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
