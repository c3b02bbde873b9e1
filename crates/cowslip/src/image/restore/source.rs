//! Chunks from an image into the file behind an arena.

use std::time::Duration;

use crate::arena::state::Shared;
use crate::arena::store::offset;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::image::chunk::{Scratch, is_zero};
use crate::image::format::PAGE_BYTES;
use crate::sys::{Errno, memfile};
use crate::units::CHUNK_BYTES;

use super::OPERATION;

/// How often, and how long apart, memory is asked for that is not to be had at once.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// What a thread that fetches works with.
pub(super) struct Desk {
    content: Vec<u8>,
    scratch: Scratch,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self { content: vec![0; CHUNK_BYTES], scratch: Scratch::default() }
    }
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) image: Image,
    pub(super) arena: u32,
}

impl Source {
    /// Has the disk begin with a chunk.
    pub(super) fn will_need(&self, chunk: u32) {
        self.image.will_need(self.arena, chunk);
    }

    /// Reads a chunk and checks it; then only is any of it in the arena's file.
    pub(super) fn fetch(&self, shared: &Shared, chunk: u32, desk: &mut Desk) -> Result<()> {
        let Desk { content, scratch } = desk;
        self.image.read_chunk_with(scratch, self.arena, chunk, content)?;
        let range = shared.chunk_range(chunk as usize, 1);
        let file = shared.store.fd();
        let at = offset(shared.range, range);
        if shared.store.pages.is_huge() {
            // At once: the kernel need not clear the huge page first.
            return patiently(|| memfile::write_at(file, content, at))
                .map_err(|errno| Error::from_errno(OPERATION, errno).on(range));
        }
        let pages = content.chunks_exact(PAGE_BYTES).enumerate();
        for (i, page) in pages.filter(|(_, page)| !is_zero(page)) {
            patiently(|| memfile::write_at(file, page, at + (i * PAGE_BYTES) as u64))
                .map_err(|errno| Error::from_errno(OPERATION, errno).on(range))?;
        }
        Ok(())
    }
}

/// Memory that is not to be had at once may be a moment later.
fn patiently(mut write: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    for _ in 1..ATTEMPTS {
        match write() {
            Err(Errno::NOMEM | Errno::NOSPC | Errno::AGAIN) => std::thread::sleep(PAUSE),
            answer => return answer,
        }
    }
    write()
}
