//! Whole processes that know nothing of Cowslip: held at an instant, copied, taken back, and started warm.
//!
//! The rivals do the same without it: the program's own fork, which keeps one thread, `criu dump --leave-running`, a start
//! from the beginning, and the fork server of Python's `multiprocessing`.

mod hold;
mod promises;
mod store;
mod warm;

use clap::ValueEnum;
use cowslip::units::ByteCount;
use cowslip_process::{Copy, CopyOptions, Holder, PrivateFolders};
use cowslip_sys::AsFd;

use super::error::{Result, during};
use super::{Bench, Options, parts};

pub(crate) use promises::PROMISES;

/// Memory of the store.
pub const SIZE: ByteCount = ByteCount::gib(1);

const COWSLIP: &str = "cowslip";
/// A program's own fork.
const FORK: &str = "fork";
const CRIU: &str = "criu";
/// Time that the program is not running.
const PAUSE: &str = "hold_pause";
/// Time from the hold until all copies run, or answer.
const COPIES: &str = "copies_running";
const COPIES_MADE: usize = 8;

/// A measurement that can be selected.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The pause of programs of 5, 42 and 256 threads and of one of 8 GiB, beside their own fork and CRIU's dump; copies
    Hold,
    /// Redis under write load: the pause, eight copies until all answer, their memory, roll backs
    Store,
    /// Python with numpy: the first output, starts a second, memory of each
    Warm,
}

/// Runs the parts of `only`, or all, and adds their results to the report, even if it is interrupted.
///
/// # Errors
/// [`crate::Error::Interrupted`]. Any other failure of a part is a note of the report.
pub fn run(options: &Options, only: &[Part], bench: &mut Bench<'_>) -> Result<()> {
    let measured = parts::each(bench, only, |part, bench| match part {
        Part::Hold => hold::measure(bench, options.runs),
        Part::Store => store::measure(bench, options),
        Part::Warm => warm::measure(bench, options.runs),
    });
    promises::push(bench.report);
    measured
}

/// Copies that run, without streams.
fn copies(holder: &mut Holder, has_own_network: bool) -> Result<Vec<Copy>> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(during("open /dev/null"))?;
    let streams = [null.as_fd(); 3];
    let options = CopyOptions {
        streams,
        folder: None,
        private: &PrivateFolders::default(),
        has_own_network,
        job: None,
    };
    Ok((0..COPIES_MADE).map(|_| holder.branch(&options)).collect::<cowslip::Result<_>>()?)
}
