//! The files of a dump that locate its memory: `pagemap-PID.img`.
//!
//! ```text
//!  u32 0x54564319 · u32 0x56084025 · {u32 length · head} · {u32 length · entry} …     (little endian)
//! ```
//! Head and entries are Protocol Buffers, as in CRIU's `images/pagemap.proto`. The pages of the entries that are
//! present stand one after the other in `pages-N.img`, where the head says N.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;
use prost::Message;

pub(crate) const PAGE_BYTES: u64 = 4096;
const OPERATION: &str = "read a dump";
const MAGICS: [u32; 2] = [0x5456_4319, 0x5608_4025];
/// Addresses of user space end here.
const ADDRESSES_END: u64 = 1 << 56;

/// The pages are in an earlier dump.
const IN_PARENT: u32 = 1 << 0;
/// `criu lazy-pages` may bring them.
const LAZY: u32 = 1 << 1;
/// `pages-N.img` has them.
const PRESENT: u32 = 1 << 2;

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Head {
    #[prost(uint32, required, tag = "1")]
    pages_id: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
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

/// Pages of a process that stand one after the other in its `pages-N.img`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stretch {
    /// The first page's number: its address in pages.
    pub(crate) page: u64,
    /// The number of pages.
    pub(crate) pages: u64,
    /// The place in the file, in pages.
    pub(crate) at: u64,
    /// True if `criu lazy-pages` may bring them; otherwise `criu restore` reads them itself.
    pub(crate) is_lazy: bool,
}

/// The places of one process' memory in a dump.
#[derive(Debug)]
pub(crate) struct Pagemap {
    pages_id: u32,
    entries: Vec<Entry>,
    /// The contents of the file of pages.
    pub(crate) stretches: Vec<Stretch>,
}

/// The pagemaps in a folder, by process.
pub(crate) fn pagemaps(folder: &Path) -> Result<BTreeMap<u32, Pagemap>> {
    let of_folder = |error| file_error(OPERATION, folder, error);
    let mut found = BTreeMap::new();
    for file in std::fs::read_dir(folder).map_err(of_folder)? {
        let name = file.map_err(of_folder)?.file_name();
        if let Some(process) = name.to_str().and_then(process_of) {
            let path = folder.join(&name);
            let bytes =
                regular::read(&path).map_err(|error| file_error(OPERATION, &path, error))?;
            let pagemap = Pagemap::decode(&bytes).map_err(|why| {
                Error::new(ErrorKind::Corrupt, OPERATION).of_file(&path).because(why)
            })?;
            found.insert(process, pagemap);
        }
    }
    Ok(found)
}

/// The process in `pagemap-PID.img`; shared memory has other names.
pub(crate) fn process_of(name: &str) -> Option<u32> {
    name.strip_prefix("pagemap-")?.strip_suffix(".img")?.parse().ok()
}

impl Pagemap {
    fn decode(bytes: &[u8]) -> std::result::Result<Self, String> {
        let (magics, mut rest) = bytes.split_at_checked(8).ok_or("it is cut short")?;
        if magics != MAGICS.map(u32::to_le_bytes).concat() {
            return Err("it is no pagemap of CRIU 1.1 or later".into());
        }
        let mut message = || -> std::result::Result<Option<&[u8]>, &str> {
            if rest.is_empty() {
                return Ok(None);
            }
            let (length, behind) = rest.split_first_chunk().ok_or("it is cut short")?;
            let length = u32::from_le_bytes(*length) as usize;
            let (message, behind) = behind.split_at_checked(length).ok_or("it is cut short")?;
            rest = behind;
            Ok(Some(message))
        };
        let strange = |_| "it holds something else than pagemap entries".to_owned();
        let head = Head::decode(message()?.ok_or("it is cut short")?).map_err(strange)?;
        let (mut entries, mut stretches) = (Vec::new(), Vec::new());
        let (mut last_end, mut at) = (0, 0);
        while let Some(message) = message()? {
            let entry = Entry::decode(message).map_err(strange)?;
            let end = entry.pages().checked_mul(PAGE_BYTES);
            let end = end.and_then(|bytes| entry.address.checked_add(bytes));
            let is_right = entry.address % PAGE_BYTES == 0 && entry.address >= last_end;
            let Some(end) = end.filter(|end| is_right && *end <= ADDRESSES_END) else {
                return Err("its entries are not sorted, or lie outside of user space".into());
            };
            last_end = end;
            if entry.kind() & IN_PARENT != 0 {
                return Err("it needs an earlier dump; dump without --prev-images-dir".into());
            }
            let (page, pages) = (entry.address / PAGE_BYTES, entry.pages());
            if entry.kind() & PRESENT != 0 && pages > 0 {
                let is_lazy = entry.kind() & LAZY != 0;
                stretches.push(Stretch { page, pages, at, is_lazy });
                at += pages;
            }
            entries.push(entry);
        }
        Ok(Self { pages_id: head.pages_id, entries, stretches })
    }

    /// The number of pages in its file of pages.
    pub(crate) fn pages(&self) -> u64 {
        self.stretches.last().map_or(0, |last| last.at + last.pages)
    }

    /// The file that has the pages.
    pub(crate) fn pages_path(&self, folder: &Path) -> PathBuf {
        folder.join(self.pages_name())
    }

    pub(crate) fn pages_name(&self) -> String {
        format!("pages-{}.img", self.pages_id)
    }

    /// Encodes the pagemap as `criu dump --lazy-pages` writes it: lazy pages are elsewhere.
    pub(crate) fn without_lazy_pages(&self) -> Vec<u8> {
        let mut bytes = MAGICS.map(u32::to_le_bytes).concat();
        let mut message = |message: Vec<u8>| {
            bytes.extend((message.len() as u32).to_le_bytes());
            bytes.extend(message);
        };
        message(Head { pages_id: self.pages_id }.encode_to_vec());
        for entry in &self.entries {
            let mut entry = *entry;
            if entry.kind() & LAZY != 0 {
                entry.flags = Some(entry.kind() & !PRESENT);
            }
            message(entry.encode_to_vec());
        }
        bytes
    }
}

/// Copies pages out of a file of pages.
pub(crate) fn read_pages(
    file: &impl std::os::unix::fs::FileExt,
    stretch: &Stretch,
    to: &mut [u8],
) -> io::Result<()> {
    file.read_exact_at(to, stretch.at * PAGE_BYTES)
}
