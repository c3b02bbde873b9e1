//! Chunks from an image into the file behind an arena.

use std::time::Duration;

use crate::arena::state::Shared;
use crate::arena::store::offset;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::sys::{Errno, memfile};
use crate::units::CHUNK_BYTES;

use super::OPERATION;

/// How often, and how long apart, memory is asked for that is not to be had at once.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Source {
    pub(super) image: Image,
    pub(super) arena: u32,
}

impl Source {
    /// Reads a chunk and checks it; then only is any of it in the arena's file. `content` is 2 MiB of
    /// the caller's own.
    pub(super) fn fetch(&self, shared: &Shared, chunk: u32, content: &mut [u8]) -> Result<()> {
        debug_assert_eq!(content.len(), CHUNK_BYTES);
        self.image.read_chunk(self.arena, chunk, content)?;
        let range = shared.chunk_range(chunk as usize, 1);
        let (file, at) = (shared.store.fd(), offset(shared.range, range));
        let mut attempts = 1;
        loop {
            match memfile::write_at(file, content, at) {
                Ok(()) => return Ok(()),
                Err(Errno::NOMEM | Errno::NOSPC | Errno::AGAIN) if attempts < ATTEMPTS => {
                    attempts += 1;
                    std::thread::sleep(PAUSE);
                }
                Err(errno) => return Err(Error::from_errno(OPERATION, errno).on(range)),
            }
        }
    }
}
