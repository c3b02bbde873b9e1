//! `cowslip trace` itself: the recording and its result.

use std::io;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use cowslip::units::ByteCount;
use cowslip_report::{Progress, json, units};
use cowslip_trace::file::{Writer, create};
use cowslip_trace::format::latencies;
use cowslip_trace::model::{Header, Sink, Totals};
use cowslip_trace::record::{
    Error, ErrorKind, EventWindow, Options, Recorder, RecordingOutcome, Subject,
};
use serde_json::json;
use signal_hook::consts::SIGUSR2;

use super::args::RecordArgs;
use super::metrics::Metrics;
use crate::commands::signals::Signals;
use crate::exit::{self, CommandResult, DENIED, FAILED, Failure, UNSUPPORTED, USAGE, VANISHED};

/// The interval of flushes: including the time for which events wait to be in order, a recorder that is killed loses
/// less than a second.
const FLUSH: Duration = Duration::from_millis(500);
/// Time for a command to end after it was asked to.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn run(args: &RecordArgs) -> CommandResult {
    if args.command.is_empty() && subject(args).is_none() {
        let what = "which program? Say COMMAND, --pid PID, --cgroup DIR or --system";
        return Err(Failure::new(USAGE, what));
    }
    // Before an old trace is replaced.
    if args.metrics.is_some() && args.command.is_empty() && args.pid.len() != 1 {
        return Err(Failure::new(
            USAGE,
            "metrics are of one process: give a command, or one --pid",
        ));
    }
    let answer = trace(args);
    if args.command.is_empty() { answer } else { answer.map_err(Failure::instead_of_command) }
}

fn trace(args: &RecordArgs) -> CommandResult {
    let mut signals = Signals::listen(Some(SIGUSR2)).map_err(exit::system("listen to signals"))?;
    let options = Options {
        detail: args.detail.into(),
        stacks: args.stacks.into(),
        unwinding: args.unwind.into(),
        period: args.one_in,
        latency: args.latency,
        ring: args.ring,
    };
    let mut recorder = match subject(args) {
        Some(subject) => Recorder::attach(subject, &options),
        None => Recorder::launch(&args.command, &options),
    }?;
    if args.ring.is_none() && recorder.ring() < ByteCount::mib(8) {
        let ring = recorder.ring();
        errln!(
            "cowslip: rings of {ring} a processor are all that is permitted: see `cowslip trace permissions`"
        );
    }
    let write = |error| exit::io(format!("write {}", args.output.display()))(error);
    let file = create(&args.output).map_err(write)?;
    let mut writer = Writer::new(file, recorder.header()).map_err(write)?;
    let metrics = match &args.metrics {
        Some(path) => {
            let pid = recorder.program().map(|program| program.pid());
            let pid = pid.or(args.pid.first().copied()).expect("there is one, as checked");
            Some(Metrics::start(path, pid, &recorder.header().command)?)
        }
        None => None,
    };
    let (outcome, has_triggered) = match args.last {
        None => {
            let mut flushed = Instant::now();
            record(&mut recorder, &mut signals, &mut writer, args, |writer| {
                if flushed.elapsed() >= FLUSH {
                    writer.flush()?;
                    flushed = Instant::now();
                }
                Ok(false)
            })?
        }
        Some(span) => {
            let mut window = EventWindow::new(span, args.memory);
            let most = args.trigger.unwrap_or(u64::MAX);
            let answer = record(
                &mut recorder,
                &mut signals,
                &mut window,
                args,
                |window: &mut EventWindow| Ok(window.highest_rate() > most),
            )?;
            window.pour(&mut writer).map_err(write)?;
            answer
        }
    };
    metrics.map_or(Ok(()), Metrics::end)?;
    let lost = if args.last.is_some() { 0 } else { outcome.lost };
    if let Some(latencies) = &outcome.latencies {
        writer.latencies(latencies).map_err(write)?;
    }
    let (file, totals) = writer.finish(lost).map_err(write)?;
    let size = file.metadata().map_err(write)?.len();
    let summary = Summary { header: recorder.header().clone(), outcome, totals, size_bytes: size };
    summary.print(args);
    let status = wait(&mut recorder, &mut signals, has_triggered).map_err(exit::system("wait"))?;
    if let Some(path) = &args.json {
        json::write(&summary.to_json(args, status), path).map_err(exit::io("write the numbers"))?;
    }
    let Some(status) = status else { return Ok(ExitCode::SUCCESS) };
    if !status.success() {
        errln!("  the command ended with {status}");
    }
    Ok(ExitCode::from(exit::from_status(status)))
}

/// The running programs to record; `None` for a command.
fn subject(args: &RecordArgs) -> Option<Subject> {
    match &args.cgroup {
        Some(directory) => Some(Subject::ControlGroup(directory.clone())),
        None if args.system => Some(Subject::Machine),
        None => (!args.pid.is_empty()).then(|| Subject::Processes(args.pid.clone())),
    }
}

/// Records until the end, or until `after_round` has enough. Returns true if that was a trigger.
fn record<S: Sink>(
    recorder: &mut Recorder,
    signals: &mut Signals,
    sink: &mut S,
    args: &RecordArgs,
    mut after_round: impl FnMut(&mut S) -> io::Result<bool>,
) -> Result<(RecordingOutcome, bool), Failure> {
    let failed = |error| exit::io("record")(error);
    recorder.start(sink)?;
    let mut progress = Progress::new();
    if args.command.is_empty() {
        progress.phase("recording; Ctrl-C ends it");
    }
    let deadline = args.duration.map(|time| Instant::now() + time);
    let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let mut has_triggered = false;
    while !recorder.has_ended() && !signals.stops() && !has_triggered && !is_over() {
        recorder.round(signals.woken(), sink).map_err(failed)?;
        let is_enough = after_round(sink).map_err(failed)?;
        has_triggered = args.last.is_some() && (signals.triggers() || is_enough);
    }
    if signals.stops()
        && let Some(program) = recorder.program()
    {
        program.end();
        let deadline = Instant::now() + PATIENCE;
        while !recorder.has_ended() && Instant::now() < deadline {
            signals.wait(Duration::from_millis(10)).map_err(failed)?;
            recorder.round(signals.woken(), sink).map_err(failed)?;
        }
    }
    let outcome = recorder.finish(sink).map_err(failed)?;
    progress.finish();
    Ok((outcome, has_triggered))
}

/// The command's status, if there was a command and it ended; after a trigger this waits for it.
fn wait(
    recorder: &mut Recorder,
    signals: &mut Signals,
    has_triggered: bool,
) -> io::Result<Option<ExitStatus>> {
    let has_ended = recorder.has_ended();
    let Some(program) = recorder.program() else { return Ok(None) };
    loop {
        let status = program.status()?;
        if status.is_some() || !(has_ended || has_triggered) || signals.stops() && !has_ended {
            return Ok(status);
        }
        signals.wait(Duration::from_millis(10))?;
    }
}

/// A recording in numbers.
struct Summary {
    header: Header,
    outcome: RecordingOutcome,
    totals: Totals,
    size_bytes: u64,
}

impl Summary {
    fn seconds(&self) -> f64 {
        self.totals.last_ns.saturating_sub(self.totals.first_ns) as f64 / 1e9
    }

    fn faults_per_second(&self) -> f64 {
        let seconds = self.seconds();
        if seconds > 0.0 { self.totals.faults as f64 / seconds } else { 0.0 }
    }

    fn print(&self, args: &RecordArgs) {
        let Self { header, outcome, totals, size_bytes } = self;
        errln!(
            "{}: {} in {:.2} s: {} events, {} of them page faults ({}); {} lost",
            args.output.display(),
            units::size(*size_bytes),
            self.seconds(),
            totals.events,
            totals.faults,
            units::human(self.faults_per_second(), "1/s"),
            totals.lost,
        );
        if outcome.faults != totals.faults {
            errln!("  the kernel counted {} page faults", outcome.faults);
        }
        for (count, what) in [
            (outcome.late, "events came late: their times are later than they were"),
            (outcome.malformed, "records were not understood"),
            (outcome.throttled, "times the kernel told nothing for a while"),
        ] {
            if count > 0 {
                errln!("  {count} {what}");
            }
        }
        if totals.lost > 0 {
            errln!("  lost for want of room in the rings: try a larger --ring, or --one-in N");
        }
        for (kind, times) in outcome.latencies.iter().flat_map(latencies) {
            errln!("  {kind}: {times}");
        }
        for unseen in &header.unseen {
            errln!("  not seen: {unseen}");
        }
    }

    fn to_json(&self, args: &RecordArgs, status: Option<ExitStatus>) -> serde_json::Value {
        let Self { header, outcome, totals, size_bytes } = self;
        json!({
            "schema": "cowslip.trace-record/1",
            "output": args.output,
            "size_bytes": size_bytes,
            "duration_ns": totals.last_ns.saturating_sub(totals.first_ns),
            "events": totals.events,
            "faults": totals.faults,
            "faults_counted": outcome.faults,
            "faults_per_second": self.faults_per_second(),
            "sampling_period": header.sampling_period,
            "lost": totals.lost,
            "late": outcome.late,
            "malformed": outcome.malformed,
            "throttled": outcome.throttled,
            "latencies": outcome.latencies,
            "ring_bytes": outcome.ring.0,
            "sources": header.sources,
            "unseen": header.unseen,
            "exit_code": status.and_then(|status| status.code()),
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Usage => USAGE,
            ErrorKind::Unsupported => UNSUPPORTED,
            ErrorKind::Denied => DENIED,
            ErrorKind::Vanished => VANISHED,
            ErrorKind::NotRun => {
                let errno = error.errno().unwrap_or_default();
                exit::not_run(&io::Error::from_raw_os_error(errno))
            }
            _ => FAILED,
        };
        if code == exit::NOT_FOUND {
            let hint = "`cowslip trace --help` lists the commands of its own";
            return Self::new(code, format!("{error}; {hint}"));
        }
        Self::new(code, error)
    }
}
