//! Reads `perf.data` as written by perf.

mod lengths;

use std::borrow::Cow;
use std::io::{self, Read, Seek};

use cowslip_sys::units::VirtRange;
use linux_perf_data::linux_perf_event_reader::constants::PERF_RECORD_MISC_MMAP_BUILD_ID;
use linux_perf_data::linux_perf_event_reader::{
    CpuMode, EventRecord, Mmap2FileId, PerfClock, RawData, RawEventRecord, RecordType,
    SampleRecord, SamplingPolicy,
};
use linux_perf_data::{AttributeDescription, PerfFile, PerfFileReader, PerfFileRecord};

use super::invalid;
use super::record::{At, Edge, Fault, Record, Source, Take};
use crate::model::{Header, Map};

/// From here on, the "addresses" in call chains are markers of the memory in which the next ones lie.
const CONTEXT_LEAST: u64 = -4095_i64 as u64;
const PROT_EXEC: u32 = 4;
/// The offset of a tracepoint's own fields, after those common to all; for system calls, their number comes
/// before the arguments.
const FIELDS_AT: usize = 8;
const ARGUMENTS_AT: usize = 16;

/// The offset in a mapping's record, after process, thread, address, length and offset.
const BUILD_ID_LENGTH_AT: usize = 32;
const BUILD_ID_MOST_BYTES: u8 = 20;

/// The meaning of an event's samples.
enum Meaning {
    /// A fault, and the fixed number of faults that each stands for.
    Fault(Source, Option<u64>),
    Edge(Edge),
    Other,
}

/// Passes every record to `take`, and stores the file's facts about the machine in `header`.
pub(super) fn read(
    mut input: impl Read + Seek,
    header: &mut Header,
    take: &mut Take<'_>,
) -> io::Result<()> {
    lengths::check(&mut input)?;
    let reader = PerfFileReader::parse_file(input).map_err(damaged)?;
    let PerfFileReader { mut perf_file, mut record_iter } = reader;
    describe(&perf_file, header).map_err(damaged)?;
    let events = perf_file.event_attributes().iter().map(|event| {
        let period = match event.attributes().sampling_policy {
            SamplingPolicy::Period(period) => Some(period.get()),
            _ => None,
        };
        meaning(event.name().unwrap_or_default(), period)
    });
    let events: Vec<Meaning> = events.collect();
    let mut frames = Vec::new();
    while let Some(record) = record_iter.next_record(&mut perf_file).map_err(damaged)? {
        let PerfFileRecord::EventRecord { attr_index, record } = record else { continue };
        let common = record.common_data().map_err(damaged)?;
        let (pid, tid) = (common.pid.unwrap_or_default(), common.tid.unwrap_or_default());
        let time_ns = common.timestamp;
        if record.record_type == RecordType::LOST_SAMPLES {
            let count = u64_at(&record.data.as_slice(), 0);
            take(at(time_ns, pid, tid), Record::Lost { count })?;
            continue;
        }
        if has_wrong_build_id(&record) {
            return Err(damaged("a mapping has too long a build id"));
        }
        match record.parse().map_err(damaged)? {
            EventRecord::Sample(event) => {
                let record = sample(&event, &events[attr_index], &mut frames);
                take(at(time_ns, pid, tid), record)?;
            }
            EventRecord::Comm(comm) => {
                let name = text(comm.name);
                let record = Record::Comm { name: &name, is_exec: comm.is_execve };
                take(at(time_ns, comm.pid, comm.tid), record)?;
            }
            EventRecord::Fork(fork) => {
                let (child_pid, child_tid) = (fork.pid as u32, fork.tid as u32);
                let record = Record::Fork { child_pid, child_tid };
                take(at(time_ns, fork.ppid, fork.ptid), record)?;
            }
            EventRecord::Exit(exit) => take(at(time_ns, exit.pid, exit.tid), Record::Exit)?,
            EventRecord::Lost(lost) => {
                take(at(time_ns, pid, tid), Record::Lost { count: lost.count })?;
            }
            // The kernel's own mappings are reported as well.
            EventRecord::Mmap2(mapping) if mapping.pid >= 0 => {
                let memory = (mapping.address, mapping.length, mapping.page_offset);
                let inode = match &mapping.file_id {
                    Mmap2FileId::InodeAndVersion(file) => file.inode,
                    Mmap2FileId::BuildId(_) => 0,
                };
                let record =
                    map(memory, mapping.protection, mapping.flags, inode, &text(mapping.path));
                take(at(time_ns, mapping.pid, mapping.tid), record)?;
            }
            EventRecord::Mmap(mapping) if mapping.pid >= 0 => {
                let protection = if mapping.is_executable { PROT_EXEC } else { 0 };
                let memory = (mapping.address, mapping.length, mapping.page_offset);
                let record = map(memory, protection, 0, 0, &text(mapping.path));
                take(at(time_ns, mapping.pid, mapping.tid), record)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The library that reads it panics at such a record.
fn has_wrong_build_id(record: &RawEventRecord<'_>) -> bool {
    let has_one = record.misc & PERF_RECORD_MISC_MMAP_BUILD_ID != 0;
    let length = || record.data.as_slice().get(BUILD_ID_LENGTH_AT).copied();
    record.record_type == RecordType::MMAP2 && has_one && length() > Some(BUILD_ID_MOST_BYTES)
}

fn at(time_ns: Option<u64>, pid: i32, tid: i32) -> At {
    At { time_ns, pid: pid as u32, tid: tid as u32 }
}

/// With a fixed period, perf writes none into the samples.
fn meaning(event: &str, period: Option<u64>) -> Meaning {
    match (Source::named(event), Edge::named(event)) {
        (Some(source), _) => Meaning::Fault(source, period),
        (_, Some(edge)) => Meaning::Edge(edge),
        _ => Meaning::Other,
    }
}

fn sample<'a>(
    sample: &SampleRecord<'_>,
    meaning: &Meaning,
    frames: &'a mut Vec<u64>,
) -> Record<'a> {
    let fields = sample.raw.map(|raw| raw.as_slice()).unwrap_or_default();
    let field = |i: usize| u64_at(&fields, FIELDS_AT + 8 * i);
    match *meaning {
        Meaning::Other => Record::Other,
        Meaning::Edge(Edge::Leave) => Record::Leave { result: u64_at(&fields, ARGUMENTS_AT) },
        Meaning::Edge(Edge::Enter(name)) => {
            Record::Enter(name.call(|i| u64_at(&fields, ARGUMENTS_AT + 8 * i)))
        }
        Meaning::Fault(source, period) => {
            frames.clear();
            if let Some(chain) = sample.callchain {
                frames.extend((0..chain.len()).filter_map(|i| chain.get(i)));
                frames.retain(|&frame| frame < CONTEXT_LEAST);
            }
            let is_exception = matches!(source, Source::Exception { .. });
            let exception = |i| is_exception.then(|| field(i));
            Record::Fault(Fault {
                source,
                address: if is_exception { exception(0) } else { sample.addr },
                ip: exception(1).or(sample.ip),
                error_code: exception(2),
                in_user_mode: match sample.cpu_mode {
                    CpuMode::User => Some(true),
                    CpuMode::Kernel => Some(false),
                    _ => None,
                },
                frames,
                period: sample.period.or(period),
            })
        }
    }
}

/// `memory` is its address, its length, and its offset in the file.
fn map(
    memory: (u64, u64, u64),
    protection: u32,
    flags: u32,
    inode: u64,
    path: &str,
) -> Record<'static> {
    let (address, length, offset_bytes) = memory;
    let is_anonymous = path.is_empty() || path == "//anon";
    let length = length.min(u64::MAX - address);
    Record::Map(Map {
        range: VirtRange::new(address as usize, length as usize),
        protection,
        flags,
        offset_bytes: if is_anonymous { 0 } else { offset_bytes },
        inode,
        name: (!is_anonymous).then(|| path.into()),
        is_old: false,
        stack: None,
    })
}

fn text(bytes: RawData<'_>) -> String {
    match String::from_utf8_lossy(&bytes.as_slice()) {
        Cow::Borrowed(text) => text.into(),
        Cow::Owned(text) => text,
    }
}

/// Returns zero where the record is too short.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

fn describe(file: &PerfFile, header: &mut Header) -> Result<(), linux_perf_data::Error> {
    let owned = |text: Option<&str>| text.unwrap_or_default().to_owned();
    header.sources.push("import:perf.data".into());
    let command = file.cmdline()?.unwrap_or_default();
    header.command = command.into_iter().map(Into::into).collect();
    header.machine.kernel_release = owned(file.os_release()?);
    header.machine.architecture = owned(file.arch()?);
    header.machine.cpu_model = owned(file.cpu_desc()?);
    header.machine.cpus = file.nr_cpus()?.map_or(0, |cpus| cpus.nr_cpus_online);
    header.machine.memory_bytes = file.total_mem()?.unwrap_or(0).saturating_mul(1024);
    header.clock = match file.event_attributes().first().map(|event| event.attributes().clock) {
        Some(PerfClock::ClockId(clock)) => format!("{clock:?}").to_lowercase(),
        _ => "perf".into(),
    };
    let is_guessed = |event: &AttributeDescription| {
        matches!(meaning(event.name().unwrap_or_default(), None), Meaning::Fault(..))
            && matches!(event.attributes().sampling_policy, SamplingPolicy::Frequency(_))
    };
    if file.event_attributes().iter().any(is_guessed) {
        header.unseen.push(
            "the number of faults, which is estimated by the periods that perf chose for its frequency: record with `-c 1`"
                .to_owned(),
        );
    }
    Ok(())
}

fn damaged(error: impl std::fmt::Display) -> io::Error {
    invalid(format!("it is damaged: {error}"))
}
