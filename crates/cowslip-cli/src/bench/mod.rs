//! Measurements of Cowslip beside its rivals, all in one run.
//!
//! * [`memory`]: memory of each kind, written and read through atomic words.
//! * [`rivals`]: the mechanisms, behind one trait.
//! * [`field`]: several rivals measured in turns; who fails leaves with a skipped row.
//! * [`parts`]: what can be asked for by itself; one that fails leaves a note.
//! * [`program`]: programs that know nothing of Cowslip, run in several ways.
//! * [`cow`], [`fork`], [`restore`], [`bloat`], [`trace`]: what is measured for `cowslip bench` of that name.

pub(crate) mod bloat;
pub(crate) mod cow;
pub(crate) mod fork;
pub(crate) mod restore;
pub(crate) mod trace;

mod child;
mod error;
mod field;
mod memory;
mod parts;
mod pool;
mod program;
mod rivals;
mod rows;
mod smaps;
mod stop;

use cowslip::units::{ByteCount, CHUNK_BYTES};

pub(crate) use error::Error;
pub(crate) use field::Bench;
pub(crate) use stop::Stop;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The largest memory to freeze.
    pub(crate) size: ByteCount,
    /// Memory that all rivals together may use.
    pub(crate) budget: ByteCount,
    /// Repetitions of each measurement of a pause.
    pub(crate) runs: u32,
}

impl Options {
    /// The memory of the measurements that are not about size: 1 GiB, if that much may be frozen.
    fn working_bytes(&self) -> usize {
        let bytes = self.size.0.min(GIB) as usize;
        (bytes - bytes % CHUNK_BYTES).max(CHUNK_BYTES)
    }
}
