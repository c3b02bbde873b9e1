//! Restores all of an image at once, before the arena is visible to any thread.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use cowslip_sys::error::{Error, Result, errno_of};

use super::options::OPERATION;
use super::schedule::RestoreSchedule;
use super::source::{FetchContext, Source};
use crate::arena::state::Shared;
use crate::image::OnProgress;
use crate::progress::broken_off;

/// The longest time between reports of progress.
const TELL: Duration = Duration::from_millis(100);

pub(super) fn fill(
    shared: &Shared,
    source: &Source,
    schedule: &Arc<RestoreSchedule>,
    threads: usize,
    progress: OnProgress<'_>,
) -> Result<()> {
    let _listener = source.listen(schedule);
    let first = FetchContext::first(shared, &source.file, threads);
    std::thread::scope(|scope| {
        for i in 0..threads {
            let mut context = first.beside();
            let work = move || {
                source.each(schedule, |chunk| {
                    if let Err(error) = source.fetch(chunk, &mut context) {
                        schedule.failed(&error.on(shared.chunk_range(chunk as usize, 1)));
                        schedule.close();
                        return ControlFlow::Break(());
                    }
                    schedule.change(|plan| plan.finish(chunk));
                    ControlFlow::Continue(())
                });
            };
            match std::thread::Builder::new().spawn_scoped(scope, work) {
                Ok(_) => {}
                Err(error) if i == 0 => {
                    let failed = Error::from_errno(OPERATION, errno_of(&error));
                    schedule.failed(&failed.because("no thread can be started"));
                    schedule.close();
                    break;
                }
                Err(_) => break,
            }
        }
        let mut now = schedule.progress();
        loop {
            if let ControlFlow::Break(()) = progress(now) {
                schedule.failed(&broken_off(OPERATION));
                schedule.close();
            }
            if now.done_bytes == now.total_bytes || schedule.is_closing() {
                break;
            }
            now = schedule.wait_moved(now, TELL);
        }
    });
    schedule.error().map_or(Ok(()), Err)
}
