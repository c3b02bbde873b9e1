//! Parts that all targets share: the limit of memory, seeds, and the names that a report of coverage has.

mod symbols;
pub mod traces;

use std::alloc::System;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use cap::Cap;
use cowslip::image::{Checksum, Progress};

/// An allocation beyond the bound fails, which ends the target.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, 1 << 30);

/// The variable that names the folder of the corpus.
const CORPUS: &str = "COWSLIP_FUZZ_CORPUS";
/// The variable that names the only seed, if there is only one.
const SEED: &str = "COWSLIP_FUZZ_SEED";

/// Adds an input to the corpus, where there is one.
pub fn seed(name: &str, bytes: &[u8]) {
    if std::env::var_os(SEED).is_some_and(|only| only != name) {
        return;
    }
    if let Some(corpus) = std::env::var_os(CORPUS) {
        fs::write(Path::new(&corpus).join(format!("seed-{name}")), bytes).expect("a seed");
    }
}

/// Adds the data of another crate's tests to the corpus.
pub fn seed_from(folder: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(folder);
    for file in fs::read_dir(folder).expect("a folder of test data").flatten() {
        if file.file_type().is_ok_and(|kind| kind.is_file()) {
            let bytes = fs::read(file.path()).expect("test data");
            seed(&file.file_name().to_string_lossy(), &bytes);
        }
    }
}

/// A new folder, in that of `fuzz/run`'s temporary files.
pub fn folder() -> PathBuf {
    tempfile::tempdir().expect("a folder").keep()
}

/// Breaks nothing off.
pub fn proceed(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A field of eight bytes; 0 where the bytes end before it.
pub fn u64_at(bytes: &[u8], at: usize) -> usize {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u64::from_le_bytes(*field) as usize)
}

/// A field of four bytes; 0 where the bytes end before it.
pub fn u32_at(bytes: &[u8], at: usize) -> usize {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u32::from_le_bytes(*field) as usize)
}

/// Puts the checksum of `of` at `at`, if both lie in the bytes.
pub fn sign(bytes: &mut [u8], of: Range<usize>, at: usize) {
    let Some(signed) = bytes.get(of).map(Checksum::from_bytes) else { return };
    put(bytes, at, &signed.0);
}

/// Puts a field at `at`, if it lies in the bytes.
pub fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..field.len())) {
        place.copy_from_slice(field);
    }
}
