//! The files of a dump that locate its memory: `pagemap-PID.img`.
//!
//! ```text
//!  u32 0x54564319 · u32 0x56084025 · {u32 length · head} · {u32 length · entry} …     (little endian)
//! ```
//! Head and entries are Protocol Buffers, as in `images/pagemap.proto` of CRIU 4.3. The pages of the entries that are
//! present stand one after the other in `pages-N.img`, where the head says N. Shared memory has files of the same kind,
//! `pagemap-shmem-N.img`.

use std::path::{Path, PathBuf};

use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;
use prost::Message;

use crate::pages::{Blocks, PAGE_BYTES, Stretch};

pub(crate) const OPERATION: &str = "read a dump";
const MAGICS: &[u32] = &[0x5456_4319, 0x5608_4025];
/// Addresses of user space end here.
const ADDRESSES_END: u64 = 1 << 56;

/// The pages are in an earlier dump.
const IN_PARENT: u32 = 1 << 0;
/// `criu lazy-pages` may bring them.
const LAZY: u32 = 1 << 1;
/// `pages-N.img` has them.
const PRESENT: u32 = 1 << 2;
/// They begin there at a multiple of a page.
const ALIGNED: u32 = 1 << 3;

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Head {
    #[prost(uint32, required, tag = "1")]
    pages_id: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Entry {
    #[prost(uint64, required, tag = "1")]
    address: u64,
    /// The only count before CRIU 4.2.
    #[prost(uint32, required, tag = "2")]
    short_count: u32,
    #[prost(bool, optional, tag = "3")]
    in_parent: Option<bool>,
    #[prost(uint32, optional, tag = "4")]
    flags: Option<u32>,
    #[prost(uint64, optional, tag = "5")]
    count: Option<u64>,
    /// The pages are compressed, since CRIU 4.3.
    #[prost(message, optional, tag = "6")]
    blocks: Option<Blocks>,
}

impl Entry {
    fn pages(&self) -> u64 {
        self.count.unwrap_or(self.short_count.into())
    }

    fn kind(&self) -> u32 {
        match self.in_parent {
            Some(true) => self.flags.unwrap_or(0) | IN_PARENT,
            _ => self.flags.unwrap_or(PRESENT),
        }
    }
}

/// The places of memory in a dump.
#[derive(Debug)]
pub(crate) struct Pagemap {
    pub(crate) name: String,
    /// `None` for shared memory.
    pub(crate) process: Option<u32>,
    pages_id: u32,
    entries: Vec<Entry>,
    /// The contents of the file of pages.
    pub(crate) stretches: Vec<Stretch>,
}

/// The pagemaps in a folder, by name.
pub(crate) fn pagemaps(folder: &Path) -> Result<Vec<Pagemap>> {
    let of_folder = |error| file_error(OPERATION, folder, error);
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder).map_err(of_folder)? {
        let name = file.map_err(of_folder)?.file_name();
        let Some(name) = name.to_str().filter(|name| is_pagemap(name)) else { continue };
        let path = folder.join(name);
        let bytes = regular::read(&path).map_err(|error| file_error(OPERATION, &path, error))?;
        found.push(Pagemap::decode(name, &bytes).map_err(|why| {
            Error::new(ErrorKind::Corrupt, OPERATION).of_file(&path).because(why)
        })?);
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

fn is_pagemap(name: &str) -> bool {
    let number = name.strip_prefix("pagemap-").and_then(|rest| rest.strip_suffix(".img"));
    let number = number.map(|number| number.strip_prefix("shmem-").unwrap_or(number));
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// The messages of a file of a dump.
pub(crate) fn messages<'a>(
    bytes: &'a [u8],
    magics: &[u32],
) -> std::result::Result<Vec<&'a [u8]>, String> {
    let cut = "it is cut short";
    let (start, mut rest) = bytes.split_at_checked(magics.len() * 4).ok_or(cut)?;
    if !start.chunks(4).eq(magics.iter().map(|magic| magic.to_le_bytes())) {
        return Err("it is no such file of CRIU 1.1 or later".into());
    }
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk().ok_or(cut)?;
        let (message, behind) =
            behind.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(cut)?;
        messages.push(message);
        rest = behind;
    }
    Ok(messages)
}

/// The file that has these messages.
pub(crate) fn file_of(magics: &[u32], messages: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut bytes: Vec<u8> = magics.iter().flat_map(|magic| magic.to_le_bytes()).collect();
    for message in messages {
        bytes.extend((message.len() as u32).to_le_bytes());
        bytes.extend(message);
    }
    bytes
}

/// Decodes a message that says nothing that would be lost.
fn decode<M: Message + Default>(message: &[u8]) -> std::result::Result<M, String> {
    let decoded = M::decode(message).map_err(|_| "it holds something else than pagemap entries")?;
    if decoded.encode_to_vec() == message {
        return Ok(decoded);
    }
    Err("it has fields that CRIU 4.3 does not know; import it with a later Cowslip".into())
}

impl Pagemap {
    fn decode(name: &str, bytes: &[u8]) -> std::result::Result<Self, String> {
        let process = name.strip_prefix("pagemap-").and_then(|rest| rest.strip_suffix(".img"));
        let process = process.and_then(|process| process.parse().ok());
        let messages = messages(bytes, MAGICS)?;
        let (head, rest) = messages.split_first().ok_or("it is cut short")?;
        let head: Head = decode(head)?;
        let (mut entries, mut stretches) = (Vec::new(), Vec::<Stretch>::new());
        let (mut last_end, mut at) = (0, 0_u64);
        for message in rest {
            let entry: Entry = decode(message)?;
            let kind = entry.kind();
            let end = entry.pages().checked_mul(PAGE_BYTES);
            let end = end.and_then(|bytes| entry.address.checked_add(bytes));
            let is_right = entry.address.is_multiple_of(PAGE_BYTES) && entry.address >= last_end;
            let Some(end) = end.filter(|end| is_right && *end <= ADDRESSES_END) else {
                return Err("its entries are not sorted, or lie outside of user space".into());
            };
            last_end = end;
            let unknown = kind & !(IN_PARENT | LAZY | PRESENT | ALIGNED);
            if unknown != 0 {
                return Err(format!(
                    "it has flags {unknown:#x}, which CRIU 4.3 does not know; import it with a later Cowslip"
                ));
            }
            if kind & IN_PARENT != 0 {
                return Err("it needs an earlier dump; dump without --prev-images-dir".into());
            }
            if kind & LAZY != 0 && process.is_none() {
                return Err("shared memory cannot come later".into());
            }
            let (page, pages) = (entry.address / PAGE_BYTES, entry.pages());
            let is_present = kind & PRESENT != 0 && pages > 0;
            if entry.blocks.as_ref().is_some_and(|blocks| !is_present || !blocks.are_of(pages)) {
                return Err("its compressed blocks are not those of its pages".into());
            }
            if is_present {
                if kind & ALIGNED != 0 {
                    at = at.next_multiple_of(PAGE_BYTES);
                }
                let (is_lazy, blocks) = (kind & LAZY != 0, entry.blocks.clone());
                stretches.push(Stretch { page, pages, at, is_lazy, blocks });
                at = stretches.last().map_or(at, Stretch::end);
            }
            entries.push(entry);
        }
        Ok(Self { name: name.to_owned(), process, pages_id: head.pages_id, entries, stretches })
    }

    /// The contents that `criu lazy-pages` may bring.
    pub(crate) fn lazy(&self) -> impl Iterator<Item = &Stretch> {
        self.stretches.iter().filter(|stretch| stretch.is_lazy)
    }

    /// The length of its file of pages.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.stretches.last().map_or(0, Stretch::end)
    }

    /// The file that has the pages.
    pub(crate) fn pages_path(&self, folder: &Path) -> PathBuf {
        folder.join(self.pages_name())
    }

    pub(crate) fn pages_name(&self) -> String {
        format!("pages-{}.img", self.pages_id)
    }

    /// Encodes the pagemap as `criu dump --lazy-pages` writes it: lazy pages are elsewhere, and the others plain.
    pub(crate) fn without_lazy_pages(&self) -> Vec<u8> {
        let entries = self.entries.iter().map(|entry| {
            let flags = match entry.kind() {
                kind if kind & LAZY != 0 => Some(kind & !PRESENT & !ALIGNED),
                kind if kind & ALIGNED != 0 => Some(kind & !ALIGNED),
                _ => entry.flags,
            };
            Entry { flags, blocks: None, ..entry.clone() }.encode_to_vec()
        });
        let head = Head { pages_id: self.pages_id }.encode_to_vec();
        file_of(MAGICS, [head].into_iter().chain(entries))
    }
}
