//! Memory in pieces that the kernel cannot join: single pages that pipes refer to (`vmsplice(2)`), which it never moves.
//!
//! The pages are ordinary ones of a program, which then releases the others around them. Buffers of pipes, filled by
//! writes, would lie together, in blocks into which the kernel moves nothing.
#![allow(unsafe_code)]

use std::io::{PipeReader, PipeWriter, pipe};

use cowslip::units::page_size_bytes;
use rustix::pipe::{IoSliceRaw, SpliceFlags, vmsplice};

use crate::error::{Result, during};

/// Pages that a new pipe refers to at most.
const PIPE_PAGES: usize = 16;

/// Pipes that refer to pages.
#[derive(Debug, Default)]
pub(super) struct PinnedPages {
    full: Vec<(PipeReader, PipeWriter)>,
}

impl PinnedPages {
    /// Pins the first page of each `step` pages of this memory, for as long as this value lives.
    pub(super) fn pin(&mut self, memory: &[u8], step: usize) -> Result<()> {
        let page = page_size_bytes();
        let pages: Vec<&[u8]> = memory.chunks(step * page).map(|chunk| &chunk[..page]).collect();
        for some in pages.chunks(PIPE_PAGES) {
            let (reader, writer) = pipe().map_err(during("make a pipe"))?;
            for page in some {
                // SAFETY: the kernel holds the pages themselves, so that the memory may go. Nothing reads from the pipe.
                unsafe {
                    vmsplice(&writer, &[IoSliceRaw::from_slice(page)], SpliceFlags::NONBLOCK)
                }
                .map_err(during("pin a page by a pipe"))?;
            }
            self.full.push((reader, writer));
        }
        Ok(())
    }
}
