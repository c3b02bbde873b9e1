#![allow(unsafe_code)]
//! An image into an arena, all of it at once.

use std::ops::ControlFlow;

use super::open::Image;
use super::{OnProgress, Progress};
use crate::arena::Arena;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::memory::Prot;
use crate::template::Place;
use crate::units::{ByteCount, CHUNK_BYTES, VirtRange};

const OPERATION: &str = "restore an image";

impl Image {
    /// Makes an arena with the content of one of the image's: read, checked, and free of the file
    /// afterwards, so that it can be frozen and saved again, onto the same path too.
    ///
    /// At [`Place::Original`] pointers into the arena stay right; [`Place::Anywhere`] is for data without.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the image has no such arena, [`ErrorKind::Busy`] if its addresses are taken or
    /// `progress` broke it off, [`ErrorKind::Corrupt`] if a chunk is damaged; the kernel's.
    pub fn restore(&self, arena: u32, place: Place, progress: OnProgress<'_>) -> Result<Arena> {
        let Some(described) = self.description().arenas.get(arena as usize) else {
            return Err(Error::new(ErrorKind::Usage, OPERATION)
                .hint(format!("it has {} arenas", self.description().arenas.len())));
        };
        let mut builder = Arena::builder(ByteCount(described.length_bytes));
        if place == Place::Original {
            builder = builder.at(described.start_address as usize);
        }
        let restored = builder.build()?;
        let start = restored.range().start;
        for piece in &described.pieces {
            let range =
                VirtRange::new(start + piece.offset_bytes as usize, piece.length_bytes as usize);
            if !restored.allocate_at(range, Prot::RW)? {
                return Err(Error::new(ErrorKind::Corrupt, OPERATION)
                    .on(range)
                    .hint("its description hands memory out that an arena cannot"));
            }
        }
        let chunks = self.chunks_of(arena);
        let bytes = |chunks: usize| (chunks * CHUNK_BYTES) as u64;
        let mut content = vec![0; CHUNK_BYTES];
        for (i, &chunk) in chunks.iter().enumerate() {
            self.read_chunk(arena, chunk, &mut content)?;
            let at = VirtRange::new(start + chunk as usize * CHUNK_BYTES, CHUNK_BYTES);
            for (part, _, _) in
                restored.parts(at).into_iter().filter(|(_, usage, _)| usage.is_used())
            {
                let content = &content[part.start - at.start..][..part.len];
                // SAFETY: handed out just now, writable, and nobody else's.
                unsafe {
                    (part.start as *mut u8).copy_from_nonoverlapping(content.as_ptr(), part.len);
                }
            }
            let now = Progress { done_bytes: bytes(i + 1), total_bytes: bytes(chunks.len()) };
            if let ControlFlow::Break(()) = progress(now) {
                return Err(Error::new(ErrorKind::Busy, OPERATION).hint("it was broken off"));
            }
        }
        for piece in described.pieces.iter().filter(|piece| piece.prot() != Prot::RW) {
            let range =
                VirtRange::new(start + piece.offset_bytes as usize, piece.length_bytes as usize);
            // SAFETY: as above; no reference into it exists.
            unsafe { restored.protect(range, piece.prot()) }?;
        }
        Ok(restored)
    }
}
