#![allow(unsafe_code)]
//! Roll backs of a guest that has written a tenth of its RAM.
//!
//! # Safety
//! No processor runs while RAM is rolled back: the guest is run by this thread alone.

use std::time::Instant;

use cowslip::units::ByteCount;

use super::guest::{FIRST, Guest, PAGE, Ram, write_page, wrong_in};
use super::{COWSLIP, PATIENCE, wait_live};
use crate::bench::Bench;
use crate::error::{Error, Result};
use crate::host::warm;
use crate::report::Row;
use crate::rows::push_durations;

pub(super) const ROLL_BACK: &str = "roll_back_tenth";
/// Every tenth page.
pub(super) const SCATTERED: &str = "scattered";
const IN_ORDER: &str = "in order";
const SHARE: u64 = 10;

pub(super) fn measure(bench: &mut Bench<'_>, bytes: u64, runs: u32) -> Result<()> {
    let ram = super::ram(bytes)?;
    let mut guest = Guest::new(ram.memory())?;
    guest.pass()?;
    guest.stretch()?;
    for (variant, step) in [(SCATTERED, SHARE), (IN_ORDER, 1)] {
        bench.progress.phase(&format!("roll backs, a tenth written: {variant}"));
        warm(ByteCount(2 * bytes), bench.stop)?;
        let mut took = Vec::new();
        for round in bench.clock.rounds(0.5, 3, 1 + runs) {
            bench.stop.check()?;
            let snapshot = ram.snapshot(PATIENCE)?;
            let pages = (FIRST..bytes).step_by((step * PAGE) as usize);
            let tenth = (guest.ram.range().len as u64 / PAGE / SHARE) as usize;
            pages.take(tenth).for_each(|at| write_page(&guest.ram, at));
            let began = Instant::now();
            // SAFETY: see the module.
            unsafe { ram.roll_back(&snapshot) }?;
            // The first round warms up.
            if round > 0 {
                took.push(began.elapsed().as_nanos() as f64);
            }
            if wrong_in(&guest.ram)? > 0 {
                return Err(Error::Failed("a roll back left something behind".to_owned()));
            }
            drop(snapshot);
            wait_live(&ram)?;
        }
        let row = Row::new(COWSLIP, ROLL_BACK, "", 0.0, "ns").size_bytes(bytes).variant(variant);
        push_durations(bench.report, &row, &took);
    }
    Ok(())
}
