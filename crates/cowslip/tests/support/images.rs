//! Images in a folder that belongs to one test.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use cowslip::image::{Image, Progress, SaveOptions, Saved, save};
use cowslip::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ArenaSlice, Frozen};

use super::pattern;

/// An address that the kernel never chooses.
pub const ELSEWHERE: usize = 0x1000_0000_0000;

/// A directory that is removed with this value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("cowslip-{name}-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn proceed(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub fn saved(frozen: &Frozen, path: &Path) -> Saved {
    save(&[frozen], path, &SaveOptions::default(), &mut proceed).unwrap()
}

pub fn verify(path: &Path) -> cowslip::Result<Image> {
    let image = Image::open(path)?;
    image.verify(&mut proceed)?;
    Ok(image)
}

/// Patterned over some chunks, with holes in it.
pub fn patterned(arena: &Arena) -> ArenaSlice<u64> {
    let mut slice = arena.slice::<u64>(7 * CHUNK_BYTES / 8 + 1000).unwrap();
    for (i, value) in slice.iter_mut().enumerate() {
        let chunk = i * 8 / CHUNK_BYTES;
        let page = i * 8 / page_size_bytes();
        // Zeroes here and there: whole chunks, many pages, one page.
        let is_zero = chunk == 2 || page == 9 || (chunk == 4 && !page.is_multiple_of(3));
        if !is_zero {
            *value = pattern(i);
        }
    }
    slice
}

#[allow(unsafe_code)]
pub fn words<'a>(arena: &'a Arena, range: VirtRange, of: &Arena) -> &'a [u64] {
    let start = arena.range().start + (range.start - of.range().start);
    // SAFETY: the tests restore memory that was allocated there, readable, and no thread writes to
    // it.
    unsafe { std::slice::from_raw_parts(start as *const u64, range.len / 8) }
}
