//! A trace file, read and summed up.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use cowslip_trace::analysis::{Analyser, Analysis};
use cowslip_trace::cost::FaultCost;
use cowslip_trace::file::Reader;
use cowslip_trace::symbols::{Names, Symbols};

use crate::exit::{CORRUPT, Failure, USAGE};
use crate::output::progress::Progress;

/// A trace, summed up.
pub(super) struct Loaded {
    pub(super) path: PathBuf,
    pub(super) analysis: Analysis,
    pub(super) names: Names,
    /// The end is missing: the recorder was killed, or the file was cut.
    pub(super) is_cut_short: bool,
}

pub(super) fn load(path: &Path, progress: &mut Progress) -> Result<Loaded, Failure> {
    let trouble = |error: io::Error| {
        let is_content = error.kind() == io::ErrorKind::InvalidData;
        let code = if is_content { CORRUPT } else { USAGE };
        Failure::new(code, format!("read {}: {error}", path.display()))
    };
    progress.phase(&format!("reading {}", path.display()));
    let file = File::open(path).map_err(trouble)?;
    let mut reader = Reader::new(io::BufReader::new(file)).map_err(trouble)?;
    let header = reader.header().clone();
    let mut analyser = Analyser::new(&header);
    let mut events = Vec::new();
    while reader.read_block(&mut events).map_err(trouble)? {
        for event in events.drain(..) {
            analyser.observe(&event, |stack| reader.frames(stack));
        }
    }
    let cost = FaultCost::of(&header).or_else(|| FaultCost::measure().ok());
    Ok(Loaded {
        path: path.to_owned(),
        analysis: analyser.finish(cost),
        names: Names::new(Symbols::new(&header)),
        is_cut_short: reader.is_cut_short(),
    })
}
