//! Measurements of Cowslip beside its rivals, all in one run.
//!
//! * [`memory`]: memory of each kind, written and read through atomic words.
//! * [`rivals`]: the mechanisms, behind one trait.
//! * [`field`]: several rivals measured in turns; who fails leaves with a skipped row.
//! * [`cow`]: what is measured for `cowslip bench cow`.

pub(crate) mod cow;

mod child;
mod error;
mod field;
mod memory;
mod pool;
mod rivals;
mod rows;
mod smaps;
mod stop;

pub(crate) use error::Error;
pub(crate) use stop::Stop;
