//! The memory that clones of a template copy: in the files in which a freeze found it.
//!
//! A chunk has the same place in each file of an arena, so a clone maps each part of it from its own file. Memory of a
//! program that writes on between freezes lies in many files; to gather it in one copies most of it. That is done only
//! for readers that get one file: other processes, and arenas of their own.

use std::sync::OnceLock;

use cowslip_sys::error::{During, Result};
use cowslip_sys::memfile;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::VirtRange;
use cowslip_sys::{BorrowedFd, Errno};

use super::file::File;
use super::layout::{Inherit, Layout};
use crate::mapping::backing_file::{BackingFile, Pages};

const OPERATION: &str = "gather a template in one file";
/// Bytes that are copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// The files of a template's content, all of which are for reading alone.
#[derive(Debug)]
pub(super) struct Content {
    files: Vec<File>,
    /// In order and disjoint, at the arena's addresses: each with the index of its file.
    parts: Vec<(VirtRange, usize)>,
    /// The kind of the files.
    pages: Option<Pages>,
    /// A file that has all of it, made when it is wanted.
    gathered: OnceLock<File>,
}

impl Content {
    /// All of it in one file.
    pub(super) fn of_file(file: File, layout: &Layout) -> Self {
        let parts = vec![(layout.extent(), 0)];
        Self { files: vec![file], parts, pages: None, gathered: OnceLock::new() }
    }

    /// Parts in these files of one kind.
    pub(super) fn of_files(files: Vec<File>, parts: Vec<(VirtRange, usize)>, pages: Pages) -> Self {
        Self { files, parts, pages: Some(pages), gathered: OnceLock::new() }
    }

    /// Calls `each` with the parts of `range`, in order, and the file of each.
    pub(super) fn each_part(
        &self,
        range: VirtRange,
        mut each: impl FnMut(VirtRange, BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let first = self.parts.partition_point(|(part, _)| part.end() <= range.start);
        for (part, file) in &self.parts[first..] {
            let part = part.intersect(range);
            if part.is_empty() {
                break;
            }
            each(part, self.files[*file].fd()?)?;
        }
        Ok(())
    }

    /// The length of the arena that it is of.
    pub(super) fn arena_len(&self) -> Result<u64, Errno> {
        memfile::len_bytes(self.files[0].fd()?)
    }

    /// One file that has all of it: its own, or a copy.
    ///
    /// # Errors
    /// Those of a copy.
    pub(super) fn in_one(&self, layout: &Layout) -> Result<&File> {
        let pages = match (&self.files[..], self.pages) {
            ([one], _) => return Ok(one),
            (_, pages) => pages.unwrap_or(Pages::Base),
        };
        if let Some(gathered) = self.gathered.get() {
            return Ok(gathered);
        }
        let gathered = self.gather(layout, pages).during(OPERATION)?;
        Ok(self.gathered.get_or_init(|| gathered))
    }

    /// Copies what clones copy. The pin of the template keeps it as it is.
    fn gather(&self, layout: &Layout, pages: Pages) -> Result<File, Errno> {
        let home = BackingFile::of_kind(pages, self.arena_len()?)?;
        let mut content = vec![0; PIECE_BYTES];
        for region in layout.regions().iter().filter(|region| region.inherit == Inherit::Copied) {
            self.each_part(region.range, |part, from| {
                let mut at = (part.start - layout.origin()) as u64;
                let end = at + part.len as u64;
                while let Some((start, stop)) = memfile::next_data(from, at, end)? {
                    at = stop.min(start + PIECE_BYTES as u64);
                    let piece = &mut content[..(at - start) as usize];
                    memfile::read_exact_at(from, piece, start)?;
                    memfile::write_at(home.fd(), piece, start)?;
                }
                Ok(())
            })?;
        }
        File::new(ReservedFd::hold(home.for_readers()?))
    }
}
