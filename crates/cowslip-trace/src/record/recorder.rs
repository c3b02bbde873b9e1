//! A recording, from its start to its end.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

use cowslip_sys::perf::{self, Count, Ready};
use cowslip_sys::suspended_child::Program;
use cowslip_sys::units::ByteCount;
use cowslip_sys::{BorrowedFd, process};

use super::assemble::Assembler;
use super::attach::Attached;
use super::decode::{Decoder, Oddities, RawEvent};
use super::error::{Error, ErrorKind};
use super::latency::{Histogram, Obstacle};
use super::merge::Merge;
use super::options::Options;
use super::plan::{Plan, Role};
use super::subject::Subject;
use super::{machine, synthesize};
use crate::model::{Event, EventKind, Header, Latencies, Sink};

/// The longest wait of records in a ring that is never half full.
const ROUND: Duration = Duration::from_millis(100);

/// Records programs until they end, or until the caller stops.
///
/// ```no_run
/// use std::os::fd::AsFd;
/// use cowslip_trace::record::{Options, Recorder};
/// # fn sink() -> Box<dyn cowslip_trace::Sink> { unimplemented!() }
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let mut sink = sink();
/// let mut recorder = Recorder::launch(&["ls".into()], &Options::default())?;
/// let (never, _keep) = std::io::pipe()?;
/// recorder.start(&mut *sink)?;
/// while !recorder.has_ended() {
///     recorder.round(never.as_fd(), &mut *sink)?;
/// }
/// println!("{} faults", recorder.finish(&mut *sink)?.faults);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Recorder {
    header: Header,
    plan: Plan,
    attached: Attached,
    /// The counts before the beginning.
    before: Vec<Count>,
    subject: Subject,
    program: Option<Program>,
    /// In the order of [`Attached::watched`].
    ended: Vec<bool>,
    answers: Vec<Ready>,
    merge: Merge,
    assembler: Assembler,
    tally: Tally,
    frames: Vec<u64>,
    histogram: Option<Histogram>,
    /// The threads of the histogram.
    threads: HashSet<u32>,
}

/// Counts of a recording.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    oddities: Oddities,
    bad_bytes: u64,
    told_lost: u64,
}

/// The results of a recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordingOutcome {
    /// Faults that the kernel counted, recorded or not.
    pub faults: u64,
    /// Records of any kind that were lost for lack of room; the sink was told this number.
    pub lost: u64,
    /// Records that were out of order by more than a round: they have a later time than they should.
    pub late: u64,
    /// Records, or bytes, of unknown meaning.
    pub malformed: u64,
    /// Times that the kernel paused an event because it happened too often.
    pub throttled: u64,
    /// The size of each processor's ring.
    pub ring: ByteCount,
    /// The kernel's histogram of the faults of all recorded threads, if it was asked for and possible.
    pub latencies: Option<Latencies>,
}

impl Recorder {
    /// Prepares the recording of running programs.
    ///
    /// # Errors
    /// [`ErrorKind::Vanished`](super::ErrorKind) if a process does not exist, `Denied` if it may not be watched.
    pub fn attach(subject: Subject, options: &Options) -> Result<Self, Error> {
        Self::new(subject, None, options)
    }

    /// Prepares the recording of a command: a program and its arguments, which do not run yet.
    pub fn launch(command: &[OsString], options: &Options) -> Result<Self, Error> {
        let name = command.first().map(|name| name.display().to_string()).unwrap_or_default();
        let program = Program::prepare(command).map_err(|errno| Error::not_run(&name, errno))?;
        let mut recorder =
            Self::new(Subject::Processes(vec![program.pid()]), Some(program), options)?;
        recorder.header.command =
            command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(recorder)
    }

    fn new(subject: Subject, program: Option<Program>, options: &Options) -> Result<Self, Error> {
        let pids = subject.process_ids()?;
        let mut plan = Plan::new(options, program.is_some())?;
        let attached = Attached::open(&plan, &subject, options.ring)?;
        plan.drop_probes();
        let histogram = options.latency.then(Histogram::begin).and_then(|begun| {
            let told = |obstacle: Obstacle| {
                plan.unseen.push(format!("latencies counted by the kernel{}", obstacle.or_fix()))
            };
            begun.map_err(told).ok()
        });
        let ended = vec![false; attached.watched().count()];
        let began = machine::unix_time();
        let header = Header {
            began_unix_seconds: began.as_secs(),
            began_unix_ns: u64::try_from(began.as_nanos()).unwrap_or(0),
            clock: "monotonic".into(),
            sampling_period: options.period,
            sources: plan.names.clone(),
            unseen: plan.unseen.clone(),
            ..match &program {
                Some(_) => machine::header_of_own(),
                None => machine::header_of(&subject, &pids),
            }
        };
        Ok(Self {
            header,
            plan,
            before: attached.counts(),
            attached,
            subject,
            program,
            ended,
            answers: Vec::new(),
            merge: Merge::default(),
            assembler: Assembler::default(),
            tally: Tally::default(),
            frames: Vec::new(),
            histogram,
            threads: HashSet::new(),
        })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The size of each processor's ring: smaller than intended where that is not permitted.
    pub fn ring(&self) -> ByteCount {
        self.attached.rings.iter().map(|ring| ring.size()).min().unwrap_or_default()
    }

    /// Begins. For running processes, `sink` gets their present mappings.
    pub fn start(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        self.merge.begin_round(process::now_ns());
        if let Some(histogram) = &self.histogram {
            let failed =
                |error| Error::new(ErrorKind::System, format!("clear a histogram: {error}"));
            histogram.clear().map_err(failed)?;
        }
        if let Some(program) = &mut self.program {
            self.threads.insert(program.pid().unsigned_abs());
            self.assembler.spaces.add_thread(program.pid().unsigned_abs());
            let name = self.header.command.first().map_or("", String::as_str);
            return program.start().map_err(|errno| Error::not_run(name, errno));
        }
        let began_ns = process::now_ns();
        self.merge.last_ns = began_ns;
        self.attached.discard();
        self.before = self.attached.counts();
        for pid in self.subject.process_ids()?.iter().map(|pid| pid.unsigned_abs()) {
            let threads = synthesize::threads(pid);
            threads.iter().for_each(|_| self.assembler.spaces.add_thread(pid));
            self.threads.extend(&threads);
            for event in synthesize::events(pid, &threads, began_ns) {
                self.assembler.begin_with(event, sink).map_err(|error| {
                    Error::new(ErrorKind::System, format!("write an event: {error}"))
                })?;
            }
        }
        Ok(())
    }

    /// True if all recorded threads have ended.
    pub fn has_ended(&self) -> bool {
        self.ended.iter().all(|has_ended| *has_ended)
    }

    /// Waits until there is something to do, `wake` can be read, or some time has passed; then passes the
    /// records that are old enough to be in order to `sink`.
    pub fn round(&mut self, wake: BorrowedFd<'_>, sink: &mut dyn Sink) -> io::Result<()> {
        let ended = &mut self.ended;
        let watched: Vec<_> =
            self.attached.watched().enumerate().filter(|(number, _)| !ended[*number]).collect();
        let fds: Vec<_> = watched.iter().map(|(_, fd)| *fd).chain([wake]).collect();
        perf::poll(&fds, ROUND, &mut self.answers)?;
        for ((number, _), answer) in watched.iter().zip(&self.answers) {
            ended[*number] = answer.has_ended;
        }
        self.drain(sink, false)
    }

    /// Detaches, and passes the rest to `sink`. The recorded programs continue.
    pub fn finish(&mut self, sink: &mut dyn Sink) -> io::Result<RecordingOutcome> {
        self.attached.stop();
        let stopped_ns = process::now_ns();
        self.drain(sink, true)?;
        let histogram = self.histogram.take();
        let latencies = histogram.map(|histogram| histogram.read(&self.threads)).transpose()?;
        let counts = self.counts();
        let sources = self.plan.sources.iter().zip(&counts);
        let ends = sources.filter(|(source, _)| matches!(source.role, Role::End(_)));
        let all: u64 = ends.map(|(_, count)| count.value).sum();
        let faults =
            all.saturating_sub(self.tally.oddities.own_faults * self.header.sampling_period);
        // The kernel reports losses before the next record that finds room; the last ones it only counts.
        let counted: u64 = counts.iter().filter_map(|count| count.lost).sum();
        let untold = counted.saturating_sub(self.tally.told_lost);
        if untold > 0 {
            let pid = self.header.attached_pids.first().copied().unwrap_or_default();
            let what = EventKind::Lost { count: untold };
            sink.event(&Event { time_ns: self.merge.last_ns, pid, tid: pid, what })?;
        }
        if !self.has_ended() {
            let time_ns = self.merge.last_ns.max(stopped_ns);
            sink.event(&Event { time_ns, pid: 0, tid: 0, what: EventKind::Detach })?;
        }
        Ok(RecordingOutcome {
            faults,
            lost: self.tally.told_lost + untold,
            late: self.merge.late,
            malformed: self.tally.oddities.malformed + self.tally.bad_bytes,
            throttled: self.tally.oddities.throttled,
            ring: self.ring(),
            latencies,
        })
    }

    /// The counts since the beginning, by source.
    fn counts(&self) -> Vec<Count> {
        let since = |(now, before): (Count, &Count)| Count {
            value: now.value.saturating_sub(before.value),
            lost: now.lost.zip(before.lost).map(|(now, before)| now.saturating_sub(before)),
        };
        self.attached.counts().into_iter().zip(&self.before).map(since).collect()
    }

    /// The program that was launched.
    pub fn program(&mut self) -> Option<&mut Program> {
        self.program.as_mut()
    }

    fn drain(&mut self, sink: &mut dyn Sink, is_end: bool) -> io::Result<()> {
        let Self { plan, attached, subject, merge, assembler, tally, frames, threads, .. } = self;
        let is_of_all = !matches!(subject, Subject::Processes(_));
        merge.begin_round(process::now_ns());
        let Attached { rings, routes, dedup, .. } = attached;
        let mut decoder = Decoder {
            sources: &plan.sources,
            routes,
            except: is_of_all.then(std::process::id),
            dedup,
            oddities: &mut tally.oddities,
            frames,
            sink,
        };
        let mut failure = None;
        for ring in rings {
            let drained = ring.drain(|bytes| match decoder.decode(bytes) {
                Ok(Some(told)) => merge.push(told),
                Ok(None) => {}
                Err(error) => failure = Some(error),
            });
            tally.bad_bytes += drained.bad_bytes;
        }
        if let Some(error) = failure {
            return Err(error);
        }
        for told in merge.release(is_end) {
            if let RawEvent::Lost(count) = told.what {
                tally.told_lost += count;
            }
            threads.insert(told.tid);
            assembler.take(told, sink)?;
        }
        if is_end { assembler.finish(sink) } else { Ok(()) }
    }
}
