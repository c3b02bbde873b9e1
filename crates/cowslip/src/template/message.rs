//! A template as a message over a Unix socket.
//!
//! | bytes | |
//! | --- | --- |
//! | 8 | `COWSLIPD` |
//! | 8 | version, 1 |
//! | 8 | 1 if the base is made of huge pages, else 0 |
//! | 8 | address of the arena |
//! | 3 × 16 | device and inode of each file: base, readers' token, shared memory (zeroes: none) |
//! | 8 | number of regions, then for each: |
//! | 32 | address, length, protection, kind (0 copied, 1 shared, 2 fresh) |
//!
//! All numbers are 64 bits, little-endian. The descriptors of the files, in this order, come with the first byte, or
//! with that of the answer before it ([`crate::image::served`]).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use cowslip_sys::error::{During, Error, ErrorKind, Result, errno_of};
use cowslip_sys::memory::Prot;
use cowslip_sys::reserved_fd::{FileIdentity, ReservedFd};
use cowslip_sys::units::VirtRange;
use cowslip_sys::{AsFd, BorrowedFd, Errno, OwnedFd, memfile, socket};

use super::File;
use super::base::Base;
use super::content::Content;
use super::layout::{Inherit, Layout, Region};
use super::offer::Offered;
use crate::arena::readers::Pin;
use crate::progress::{self, Wait};

const MAGIC: [u8; 8] = *b"COWSLIPD";
const VERSION: u64 = 1;
const HEADER_WORDS: usize = 11;
const REGION_WORDS: usize = 4;
/// The most mappings that a process may have by default.
const MOST_REGIONS: u64 = 65_530;
const KINDS: [Inherit; 3] = [Inherit::Copied, Inherit::Shared, Inherit::Fresh];

const SEND: &str = "send a template";
const RECEIVE: &str = "receive a template";

/// Sends it after `first`, in the same message.
pub(super) fn send(base: &Base, first: &[u8], stream: &UnixStream) -> Result<()> {
    let (file, is_huge) = base.file_to_offer()?;
    let token = base.token_to_offer()?;
    let mut files = vec![file.fd().during(SEND)?, token.fd()];
    if let Some(shared) = &base.shared {
        files.push(shared.fd().during(SEND)?);
    }
    let message = [first, &encode(&base.layout, is_huge, &files).during(SEND)?].concat();
    let sent = socket::send(stream.as_fd(), &message, &files).during(SEND)?;
    let mut stream = stream;
    stream.write_all(&message[sent..]).map_err(|error| errno_of(&error)).during(SEND)
}

fn encode(layout: &Layout, is_huge: bool, files: &[BorrowedFd<'_>]) -> Result<Vec<u8>, Errno> {
    let mut words = vec![u64::from_le_bytes(MAGIC), VERSION, u64::from(is_huge)];
    words.push(layout.origin() as u64);
    for file in 0..3 {
        let identity = files.get(file).map(|file| FileIdentity::from_fd(*file)).transpose()?;
        words.extend(identity.map_or([0; 2], FileIdentity::to_numbers));
    }
    words.push(layout.regions().len() as u64);
    for Region { range, prot, inherit } in layout.regions() {
        let kind = KINDS.iter().position(|kind| kind == inherit).unwrap_or(0);
        words.extend([range.start as u64, range.len as u64, u64::from(prot.bits()), kind as u64]);
    }
    Ok(words.into_iter().flat_map(u64::to_le_bytes).collect())
}

/// Receives a message, the first descriptors of which have already arrived; `wait` is called before
/// each read.
pub(super) fn receive(
    stream: &UnixStream,
    mut files: Vec<OwnedFd>,
    wait: Wait<'_>,
) -> Result<Base> {
    wait(stream).map_err(of_stream)?;
    let mut header = [0; HEADER_WORDS * 8];
    let (got, came) = socket::receive(stream.as_fd(), &mut header).during(RECEIVE)?;
    files.extend(came);
    if got == 0 {
        return Err(Error::new(ErrorKind::Vanished, RECEIVE).because("the other end was closed"));
    }
    // Compares only the bytes that arrived: a foreign peer may send little and wait for an answer.
    let known = got.min(MAGIC.len());
    if header[..known] != MAGIC[..known] {
        return Err(corrupt("something else came over the socket"));
    }
    read_exact(stream, &mut header[got..], wait)?;
    let words: [u64; HEADER_WORDS] = words_of(&header).try_into().expect("as many");
    let [_, version, is_huge, origin, rest @ .., count] = words;
    if version != VERSION {
        return Err(Error::new(ErrorKind::Unsupported, RECEIVE)
            .because(format!("it is of version {version}; this is Cowslip's {VERSION}")));
    }
    if is_huge > 1 || count > MOST_REGIONS {
        return Err(corrupt("its header makes no sense"));
    }
    let mut table = vec![0; count as usize * REGION_WORDS * 8];
    read_exact(stream, &mut table, wait)?;
    let regions = words_of(&table).chunks_exact(REGION_WORDS).map(region).collect::<Option<_>>();
    let layout = regions.and_then(|regions| Layout::new(usize::try_from(origin).ok()?, regions));
    let layout = layout.ok_or_else(|| corrupt("its regions make no sense"))?;
    let identities = [[rest[0], rest[1]], [rest[2], rest[3]], [rest[4], rest[5]]];
    accept(layout, files, identities, is_huge == 1)
}

fn region(words: &[u64]) -> Option<Region> {
    let [start, len, prot, kind] = *words else { return None };
    Some(Region {
        range: VirtRange::new(usize::try_from(start).ok()?, usize::try_from(len).ok()?),
        prot: Prot::from_bits(u32::try_from(prot).ok()?)?,
        inherit: *KINDS.get(usize::try_from(kind).ok()?)?,
    })
}

/// Verifies that the files are those that the message describes.
fn accept(
    layout: Layout,
    files: Vec<OwnedFd>,
    identities: [[u64; 2]; 3],
    is_huge: bool,
) -> Result<Base> {
    let wanted = 2 + usize::from(layout.has(Inherit::Shared));
    if files.len() != wanted {
        let came = files.len();
        return Err(corrupt(format!("{came} descriptors came with it, not {wanted}")));
    }
    for (file, identity) in files.iter().zip(identities) {
        let is_same =
            FileIdentity::from_fd(file.as_fd()).is_ok_and(|actual| actual.to_numbers() == identity);
        if !is_same {
            return Err(corrupt("a descriptor is of another file than the message says"));
        }
    }
    let mut files = files.into_iter();
    let (base, token, shared) = (files.next(), files.next(), files.next());
    let (base, token) = base.zip(token).expect("counted above");
    for file in [&base].into_iter().chain(&shared) {
        if !memfile::len_bytes(file.as_fd()).is_ok_and(|len| len >= layout.file_len()) {
            return Err(corrupt("a file is too short for the regions"));
        }
    }
    if !memfile::len_bytes(token.as_fd())
        .is_ok_and(|len| len >= cowslip_sys::units::page_size_bytes() as u64)
    {
        return Err(corrupt("the token is too short"));
    }
    let pin = Pin::new(token).map_err(|errno| match errno {
        Errno::PERM => Error::new(ErrorKind::Vanished, RECEIVE)
            .because("the template and all its clones are gone")
            .advise("keep one until this has returned"),
        Errno::ACCESS => corrupt("the token cannot be written"),
        errno => Error::from_errno(RECEIVE, errno),
    })?;
    // All receivers have the same open file description, and each of them can keep its position locked for ever, by a
    // read into memory that never comes.
    let base = memfile::reopen_read_only(base.as_fd()).unwrap_or(base);
    let hold = |file| File::new(ReservedFd::hold(file)).during(RECEIVE);
    let (file, shared) = (hold(base)?, shared.map(hold).transpose()?);
    let (pin, offered) = (Arc::new(pin), Offered::default());
    let content = Content::of_file(file, &layout);
    Ok(Base { pin, content, shared, layout, is_huge, offered, _owner: None })
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks_exact(8);
    words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

fn read_exact(mut stream: &UnixStream, buffer: &mut [u8], wait: Wait<'_>) -> Result<()> {
    let mut at = 0;
    while at < buffer.len() {
        wait(stream).map_err(of_stream)?;
        match stream.read(&mut buffer[at..]) {
            Ok(0) => return Err(corrupt("it ends too early")),
            Ok(more) => at += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(of_stream(error)),
        }
    }
    Ok(())
}

fn of_stream(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::Interrupted => progress::broken_off(RECEIVE),
        _ => Error::from_errno(RECEIVE, errno_of(&error)),
    }
}

fn corrupt(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Corrupt, RECEIVE).because(why)
}
