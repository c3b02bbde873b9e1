//! A trace file, read and summed up.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use cowslip_report::Progress;
use cowslip_trace::PerfMaps;
use cowslip_trace::analysis::{Analyser, Analysis};
use cowslip_trace::cost::FaultCost;
use cowslip_trace::file::Reader;
use cowslip_trace::format::{CUT_SHORT, count, duration};
use cowslip_trace::model::Latencies;
use cowslip_trace::symbols::Names;

use crate::exit::{self, CORRUPT, Failure};

/// A trace, summed up.
pub(super) struct Loaded {
    pub(super) path: PathBuf,
    pub(super) analysis: Analysis,
    pub(super) names: Names,
    pub(super) latencies: Option<Latencies>,
    /// The notice that comes first if the trace's end is missing.
    pub(super) cut_short: Option<String>,
}

pub(super) fn load(path: &Path, progress: &mut Progress) -> Result<Loaded, Failure> {
    progress.phase(&format!("reading {}", path.display()));
    let mut reader = open(path)?;
    let header = reader.header().clone();
    let mut analyser = Analyser::new(&header).with_perf_maps(PerfMaps::new(&header));
    let mut events = Vec::new();
    while reader.read_block(&mut events).map_err(unreadable(path))? {
        for event in events.drain(..) {
            analyser.observe(&event, |stack| reader.frames(stack));
        }
    }
    let cost = FaultCost::from_header(&header).or_else(|| FaultCost::measure().ok());
    Ok(Loaded {
        path: path.to_owned(),
        analysis: analyser.finish(cost),
        names: Names::new(&header),
        latencies: reader.latencies().cloned(),
        cut_short: cut_short(path, &reader)?,
    })
}

pub(super) fn open(path: &Path) -> Result<Reader<BufReader<File>>, Failure> {
    let file = File::open(path).map_err(unreadable(path))?;
    Reader::new(BufReader::new(file)).map_err(unreadable(path))
}

pub(super) fn unreadable(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| exit::io(format_args!("read {}", path.display()))(error)
}

/// Describes the missing part of a trace that was read to its end; a trace with nothing left is damaged.
pub(super) fn cut_short(
    path: &Path,
    reader: &Reader<impl Read>,
) -> Result<Option<String>, Failure> {
    if !reader.is_cut_short() {
        return Ok(None);
    }
    let totals = reader.totals();
    if totals.events == 0 {
        let why = format!("{CUT_SHORT} before its first block of events was whole");
        return Err(Failure::new(CORRUPT, format!("read {}: {why}", path.display())));
    }
    let lasted = duration(totals.last_ns.saturating_sub(totals.first_ns) as f64);
    let bytes = count(reader.offset_bytes());
    Ok(Some(format!("{CUT_SHORT}; what is told is of the first {lasted}, {bytes} bytes")))
}

/// Warns that a trace's end is missing, where its report is not for people.
pub(super) fn warn(path: &Path, cut_short: Option<&String>) {
    if let Some(cut_short) = cut_short {
        errln!("cowslip: {}: {cut_short}", path.display());
    }
}
