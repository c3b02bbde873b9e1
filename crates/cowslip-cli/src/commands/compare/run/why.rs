//! `--why`: both commands once more, sampled by a clock, and the function in which the difference arose; and once more
//! with their system calls.
//!
//! The runs that are compared are not sampled: this comes after them. Calls have runs of their own, as each costs as much
//! again as a short one.

use std::ffi::OsString;
use std::sync::Arc;

use cowslip_compare::calls::{CallDifference, Called, CalledRun};
use cowslip_compare::inputs::Run;
use cowslip_compare::profile::{ProfileDifference, ProfiledRun};
use cowslip_compare::{TimePart, TimeSplit};
use cowslip_report::Progress;
use cowslip_trace::Sink;
use cowslip_trace::analysis::{Calls, Profile};
use cowslip_trace::record::{Detail, Options, Recorder, Unwinding};
use cowslip_trace::symbols::Names;

use super::folders::Side;
use super::{Ended, Once, RunArgs, order};
use crate::exit::{self, Failure};

/// Sampled runs of each side; so many more have their system calls recorded.
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

/// The runs that are worth their time.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Wanted {
    pub(super) functions: bool,
    pub(super) calls: bool,
}

/// Functions if there is a difference that matters and processor time took enough of it, calls if anything else than the
/// program's own work did.
pub(super) fn worth_it(good: &[Run], bad: &[Run], alpha: f64, relevant: f64) -> Wanted {
    let Some(split) = TimeSplit::from_runs(good, bad, alpha) else {
        return Wanted::default();
    };
    let (before, after) = split.means;
    let matters = split.wall.added.is_certain()
        && (after - before).abs() >= relevant * before
        && before.max(after) >= LEAST_SECONDS;
    let have = |is_it: fn(TimePart) -> bool| {
        let carried = split.parts.iter().filter(|part| is_it(part.part)).map(|part| part.carried);
        matters && carried.sum::<f64>() / split.added() >= LEAST_SHARE
    };
    Wanted {
        functions: have(|part| {
            matches!(part, TimePart::User | TimePart::System | TimePart::Running)
        }),
        calls: have(|part| !matches!(part, TimePart::User | TimePart::ProcessorWait)),
    }
}

/// Samples both commands in turns; `None` after Ctrl-C.
pub(super) fn functions(
    args: &RunArgs,
    once: &mut Once<'_>,
    alpha: f64,
) -> Result<Option<ProfileDifference>, Failure> {
    let sides = in_turns(args, once, "sampling functions", profiled)?;
    Ok(sides.and_then(|[good, bad]| ProfileDifference::new(&good, &bad, alpha)))
}

/// Records the system calls of both commands in turns; `None` after Ctrl-C.
pub(super) fn calls(
    args: &RunArgs,
    once: &mut Once<'_>,
    alpha: f64,
) -> Result<Option<CallDifference>, Failure> {
    let sides = in_turns(args, once, "recording system calls", called)?;
    Ok(sides.and_then(|[good, bad]| CallDifference::new(&good, &bad, alpha)))
}

/// [`RUNS`] runs of both commands; `None` after Ctrl-C. `run` is told if it is the first.
fn in_turns<T>(
    args: &RunArgs,
    once: &mut Once<'_>,
    phase: &str,
    run: fn(&str, &mut Once<'_>, bool) -> Result<Option<T>, Failure>,
) -> Result<Option<[Vec<T>; 2]>, Failure> {
    let mut progress = Progress::new();
    progress.phase(phase);
    let mut sides = [Vec::new(), Vec::new()];
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
        let Some(run) = run(command, once, done == 0)? else { return Ok(None) };
        sides[usize::from(matches!(side, Side::Bad))].push(run);
        if once.cleanup()? == Ended::Interrupted {
            return Ok(None);
        }
    }
    progress.finish();
    Ok(Some(sides))
}

/// Launches a command, in a shell as the others.
fn launch(command: &str, options: &Options) -> Result<Recorder, Failure> {
    let shell = "exec </dev/null >/dev/null 2>&1; eval \"$1\"";
    let words: Vec<OsString> = ["sh", "-c", shell, "sh", command].map(OsString::from).into();
    Ok(Recorder::launch(&words, options)?)
}

/// Records it until it ends; false if Ctrl-C ended it.
fn record(
    recorder: &mut Recorder,
    once: &mut Once<'_>,
    sink: &mut dyn Sink,
) -> Result<bool, Failure> {
    recorder.start(sink)?;
    while !recorder.has_ended() && !once.signals().stops() {
        recorder.round(once.signals().woken(), sink).map_err(exit::io("sample a run"))?;
    }
    let has_ended = recorder.has_ended();
    if let Some(program) = recorder.program().filter(|_| !has_ended) {
        program.end();
    }
    let outcome = recorder.finish(sink).map_err(exit::io("sample a run"))?;
    if outcome.lost > 0 {
        errln!(
            "cowslip: {} samples of a run found no room in a ring of {}",
            outcome.lost,
            outcome.ring
        );
    }
    Ok(has_ended)
}

/// One run with its system calls.
fn called(command: &str, once: &mut Once<'_>, _: bool) -> Result<Option<CalledRun>, Failure> {
    let options = Options { detail: Detail::Calls, period: PERIOD_NS, ..Options::default() };
    let mut recorder = launch(command, &options)?;
    let mut calls = Calls::default();
    if !record(&mut recorder, once, &mut calls)? {
        return Ok(None);
    }
    let calls = calls.finish().into_iter().map(|sums| {
        let called = Called {
            count: sums.calls as f64,
            elapsed: sums.elapsed_ns as f64 / 1e9,
            processor: sums.ticks as f64 * PERIOD_NS as f64 / 1e9,
        };
        (Arc::from(sums.name()), called)
    });
    Ok(Some(CalledRun { calls: calls.collect() }))
}

/// One run with its functions. The first one says which time is not sampled.
fn profiled(
    command: &str,
    once: &mut Once<'_>,
    is_first: bool,
) -> Result<Option<ProfiledRun>, Failure> {
    let unwinding =
        if cfg!(target_arch = "x86_64") { Unwinding::Dwarf } else { Unwinding::FramePointers };
    let options =
        Options { detail: Detail::Time, period: PERIOD_NS, unwinding, ..Options::default() };
    let mut recorder = launch(command, &options)?;
    for part in recorder.header().unseen.iter().filter(|part| is_first && part.contains("time in"))
    {
        errln!("cowslip: not sampled: {part}");
    }
    let mut profile = Profile::new(recorder.header());
    if !record(&mut recorder, once, &mut profile)? {
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
