//! A machine's RAM, read from the process that holds its instant.

use std::fs::File;
use std::os::unix::fs::FileExt;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::procfs::{Mapping, mappings};
use cowslip_sys::target::Target;
use cowslip_sys::units::VirtRange;
use cowslip_sys::{AsFd, OwnedFd, memfile};

const OPERATION: &str = "read the RAM of a machine";
/// Bytes for a read.
const PIECE: usize = 2 << 20;

fn failed(errno: cowslip_sys::Errno) -> Error {
    Error::from_errno(OPERATION, errno)
}

/// The RAM of an instant, in a process that does not run.
pub(super) struct Ram {
    held: Target,
    range: VirtRange,
    /// The parts that may have content, in order, from the beginning of the RAM.
    parts: Vec<VirtRange>,
}

impl Ram {
    /// Looks at the RAM at `range` of the process that holds the machine.
    pub(super) fn new(pid: i32, range: VirtRange) -> Result<Self> {
        let held = Target::open(pid).map_err(failed)?;
        let maps = held.read_file("maps").map_err(failed)?;
        let pages = Scanner::new(held.open_file("pagemap").map_err(failed)?);
        let mut parts = Vec::new();
        let mut at = range.start;
        for mapping in mappings(&maps) {
            let part = mapping.range.intersect(range);
            if part.is_empty() {
                continue;
            }
            if !mapping.is_private || part.start != at {
                break;
            }
            at = part.end();
            used(&held, &pages, &mapping, part, &mut parts)?;
        }
        if at != range.end() {
            return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                .on(range)
                .because("the machine shares it, or it is in no arena")
                .advise("start QEMU by cowslip run --guest-memory, with memory-backend-memfd"));
        }
        parts.sort_by_key(|part| part.start);
        Ok(Self { held, range, parts: joined(&parts, range.start) })
    }

    /// Reads all of it, a piece after the other: `take` gets each with its place from the beginning. Other memory is zeroes.
    pub(super) fn read(&self, take: impl FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
        self.read_parts(&self.parts, take)
    }

    /// Reads these parts of it in the same way.
    pub(super) fn read_parts(
        &self,
        parts: &[VirtRange],
        mut take: impl FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let memory = File::from(self.held.open_file("mem").map_err(failed)?);
        let mut bytes = vec![0; PIECE];
        for part in parts {
            for at in (part.start..part.end()).step_by(PIECE) {
                let piece = &mut bytes[..PIECE.min(part.end() - at)];
                let read = memory.read_exact_at(piece, (self.range.start + at) as u64);
                read.map_err(|error| Error::from_io(OPERATION, &error))?;
                take(piece, at as u64)?;
            }
        }
        Ok(())
    }
}

/// Finds the parts of a mapping that may have content: private pages, and the data of its file. All of it, without the
/// right to open that (`CAP_CHECKPOINT_RESTORE`).
fn used(
    held: &Target,
    pages: &Scanner<OwnedFd>,
    mapping: &Mapping<'_>,
    part: VirtRange,
    parts: &mut Vec<VirtRange>,
) -> Result<()> {
    if mapping.has_file {
        let (start, end) = (mapping.range.start, mapping.range.end());
        let Ok(file) = held.open_file(&format!("map_files/{start:x}-{end:x}")) else {
            parts.push(part);
            return Ok(());
        };
        let offset = mapping.offset_bytes + (part.start - start) as u64;
        let end = offset + part.len as u64;
        let mut from = offset;
        while let Some((data, hole)) =
            memfile::next_data(file.as_fd(), from, end).map_err(failed)?
        {
            let start = part.start + (data - offset) as usize;
            parts.push(VirtRange::new(start, (hole - data) as usize));
            from = hole;
        }
    }
    let private = pages.private_runs(part, |run| parts.push(run));
    private.map(drop).map_err(failed)
}

/// Sorted parts, from `start`, that overlap and touch no more.
fn joined(parts: &[VirtRange], start: usize) -> Vec<VirtRange> {
    let mut joined: Vec<VirtRange> = Vec::new();
    for part in parts {
        let part = VirtRange::new(part.start - start, part.len);
        match joined.last_mut() {
            Some(last) if last.end() >= part.start => {
                *last = VirtRange::between(last.start, last.end().max(part.end()));
            }
            _ => joined.push(part),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined() {
        let parts = [(10, 5), (12, 1), (15, 5), (30, 1)];
        let parts = parts.map(|(start, len)| VirtRange::new(start, len));
        assert_eq!(joined(&parts, 10), [VirtRange::new(0, 10), VirtRange::new(20, 1)]);
    }
}
