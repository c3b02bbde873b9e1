//! A trace, as all that reads traces reads it.

use std::io;

use cowslip_trace::analysis::Analysis;
use cowslip_trace::cost::FaultCost;
use cowslip_trace::diff::{Basis, Diff};
use cowslip_trace::export::{Format, export};
use cowslip_trace::file::Reader;
use cowslip_trace::model::Trace;
use cowslip_trace::patterns;
use cowslip_trace::picture::Picture;
use cowslip_trace::symbols::Names;

/// Reads a trace, sums it up, draws and exports it; `None` for one that is damaged.
pub fn look(bytes: &[u8]) -> Option<Trace> {
    let trace = Trace::read_from(bytes).ok()?;
    let cost = FaultCost::from_header(&trace.header);
    let analysis = Analysis::new(&trace, cost);
    patterns::find(&analysis);
    let both = [&analysis, &analysis];
    let mut names = [Names::default(), Names::default()];
    let diff = Diff::new(both, names.each_mut(), Basis::fitting(both));
    assert!(diff.is_empty(), "a trace differs from itself: {diff:?}");
    for format in [Format::Csv, Format::JsonLines] {
        let mut reader = Reader::new(bytes).expect("a trace");
        export(&mut reader, format, io::sink(), &mut |_| {}).expect("a whole trace");
    }
    Picture::new(&trace, cost).html().expect("a page");
    Some(trace)
}
