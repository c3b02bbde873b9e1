//! `read()` into anonymous memory on huge pages, by one thread or by two.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;

use cowslip::units::CHUNK_BYTES;

use super::Threads;
use crate::error::{Error, Result, during};
use crate::memory::{Anonymous, Memory};

pub(super) fn read(file: &File, bytes: usize, threads: Threads) -> Result<Memory> {
    let mut memory = Memory::anonymous(bytes, Anonymous::Huge)?;
    let half = match threads {
        Threads::OneProcessor => bytes,
        Threads::TwoProcessors => (bytes / 2).next_multiple_of(CHUNK_BYTES).min(bytes),
    };
    let (first, second) = memory.bytes_mut().split_at_mut(half);
    thread::scope(|scope| {
        let other = (!second.is_empty()).then(|| scope.spawn(|| read_part(file, second, half)));
        read_part(file, first, 0)?;
        let other = other.map_or(Ok(Ok(())), |other| other.join());
        other.map_err(|_| Error::Failed("a reading thread panicked".to_owned()))?
    })?;
    Ok(memory)
}

fn read_part(file: &File, part: &mut [u8], offset_bytes: usize) -> Result<()> {
    for (i, chunk) in part.chunks_mut(CHUNK_BYTES).enumerate() {
        let at = (offset_bytes + i * CHUNK_BYTES) as u64;
        file.read_exact_at(chunk, at).map_err(during("read a file"))?;
    }
    Ok(())
}
