//! `--why`: both commands once more, sampled by a clock, and the function in which the difference arose.
//!
//! The runs that are compared are not sampled: this comes after them.

use std::ffi::OsString;
use std::sync::Arc;

use cowslip_compare::inputs::Run;
use cowslip_compare::profile::{ProfileDifference, ProfiledRun};
use cowslip_compare::{TimePart, TimeSplit};
use cowslip_report::Progress;
use cowslip_trace::analysis::Profile;
use cowslip_trace::record::{Detail, Options, Recorder, Unwinding};
use cowslip_trace::symbols::Names;

use super::folders::Side;
use super::{Ended, Once, RunArgs, order};
use crate::exit::{self, Failure};

/// Sampled runs of each side.
const RUNS: u32 = 3;
/// A sample each millisecond of a thread on a processor: 1,000 stacks of a second.
const PERIOD_NS: u64 = 1_000_000;
/// The part of the difference that processor time must have to be looked into.
const LEAST_SHARE: f64 = 0.1;
/// Shorter runs have too few samples.
const LEAST_SECONDS: f64 = 0.02;

/// Functions of libc that call `main` and the functions of threads.
const STARTS: [&str; 5] =
    ["_start", "__libc_start_main_impl", "__libc_start_call_main", "start_thread", "clone3"];

/// Returns true if there is a difference that matters, and processor time took enough of it.
pub(super) fn is_worth_it(good: &[Run], bad: &[Run], alpha: f64, relevant: f64) -> bool {
    let Some(split) = TimeSplit::from_runs(good, bad, alpha) else { return false };
    let (before, after) = split.means;
    let is_processor =
        |part: TimePart| matches!(part, TimePart::User | TimePart::System | TimePart::Running);
    let carried: f64 =
        split.parts.iter().filter(|part| is_processor(part.part)).map(|part| part.carried).sum();
    split.wall.added.is_certain()
        && (after - before).abs() >= relevant * before
        && before.max(after) >= LEAST_SECONDS
        && carried / (after - before) >= LEAST_SHARE
}

/// Samples both commands in turns; `None` after Ctrl-C.
pub(super) fn sample(
    args: &RunArgs,
    once: &mut Once<'_>,
    alpha: f64,
) -> Result<Option<ProfileDifference>, Failure> {
    let mut progress = Progress::new();
    progress.phase("sampling functions");
    let mut sides: [Vec<ProfiledRun>; 2] = [Vec::new(), Vec::new()];
    let turns = order::turns(args.order, RUNS, args.seed ^ 2);
    for (done, side) in turns.iter().enumerate() {
        progress.set(done as u64, turns.len() as u64);
        let command = match side {
            Side::Good => &args.good,
            Side::Bad => &args.bad,
        };
        if once.prepare()? == Ended::Interrupted {
            return Ok(None);
        }
        let Some(run) = profiled(command, once, done == 0)? else { return Ok(None) };
        sides[usize::from(matches!(side, Side::Bad))].push(run);
        if once.cleanup()? == Ended::Interrupted {
            return Ok(None);
        }
    }
    progress.finish();
    Ok(ProfileDifference::new(&sides[0], &sides[1], alpha))
}

/// One run of a command, in a shell as the others. The first one says which time is not sampled.
fn profiled(
    command: &str,
    once: &mut Once<'_>,
    is_first: bool,
) -> Result<Option<ProfiledRun>, Failure> {
    let shell = "exec </dev/null >/dev/null 2>&1; eval \"$1\"";
    let words: Vec<OsString> = ["sh", "-c", shell, "sh", command].map(OsString::from).into();
    let unwinding =
        if cfg!(target_arch = "x86_64") { Unwinding::Dwarf } else { Unwinding::FramePointers };
    let options =
        Options { detail: Detail::Time, period: PERIOD_NS, unwinding, ..Options::default() };
    let mut recorder = Recorder::launch(&words, &options)?;
    for part in recorder.header().unseen.iter().filter(|part| is_first && part.contains("time in"))
    {
        errln!("cowslip: not sampled: {part}");
    }
    let mut profile = Profile::new(recorder.header());
    let mut recorded = || {
        recorder.start(&mut profile)?;
        while !recorder.has_ended() && !once.signals().stops() {
            recorder
                .round(once.signals().woken(), &mut profile)
                .map_err(exit::io("sample a run"))?;
        }
        let is_stopped = !recorder.has_ended();
        if let Some(program) = recorder.program().filter(|_| is_stopped) {
            program.end();
        }
        let outcome = recorder.finish(&mut profile).map_err(exit::io("sample a run"))?;
        if outcome.lost > 0 {
            errln!(
                "cowslip: {} samples of a run found no room in a ring of {}",
                outcome.lost,
                outcome.ring
            );
        }
        Ok::<bool, Failure>(is_stopped)
    };
    if recorded()? {
        return Ok(None);
    }
    let mut names = Names::new(recorder.header());
    let stacks = profile.finish().into_iter().map(|stack| {
        let mut functions: Vec<Arc<str>> = Vec::new();
        for name in names.functions(&stack.frames) {
            let name = without_place(&name);
            // A file without symbols stands for its innermost function.
            if !STARTS.contains(&&*name) && !functions.contains(&name) {
                functions.push(name);
            }
        }
        if stack.in_kernel {
            functions.insert(0, "[kernel]".into());
        }
        (stack.thread, functions, stack.ticks as f64 * PERIOD_NS as f64 / 1e9)
    });
    Ok(Some(ProfiledRun { stacks: stacks.collect() }))
}

/// The file alone, of a place in a file without symbols: there are too many places.
fn without_place(name: &Arc<str>) -> Arc<str> {
    match name.split_once("+0x") {
        Some((file, place)) if place.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            format!("[{file}]").into()
        }
        _ => name.clone(),
    }
}
