//! Overhead of `cowslip run` for a program that never forks: a malloc benchmark, and Redis answering GETs.

mod malloc;
mod redis;

use super::{Bench, Options};
use crate::error::{Error, Result};

pub(super) use malloc::{METRIC as MALLOC, THREADS};
pub(super) use redis::METRIC as REDIS;

/// Compared programs run in turns, and equally often.
const LEAST_ROUNDS: u32 = 3;
const MOST_ROUNDS: u32 = 7;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    // Either part can run without the other.
    let malloc = malloc::measure(bench);
    if let Err(Error::Interrupted) = malloc {
        return malloc;
    }
    redis::measure(bench, options)?;
    malloc
}
