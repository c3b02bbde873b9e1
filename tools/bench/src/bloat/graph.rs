//! Random access: igraph builds a Kronecker graph, ranks its vertices (PageRank) and searches it in breadth, as the GAP
//! benchmarks do. The program checks both results.

use super::job::{Job, Outcome};
use super::settings::System;
use super::{Bench, Options, Result};
use crate::error::{Error, during};
use crate::program::Folder;

pub(super) const NAME: &str = "graph";

const NEEDS: &str = "apt-get install gcc libigraph-dev";
/// Memory of a vertex with its edges, at most.
const VERTEX_BYTES: u64 = 480;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let folder = Folder::new("bloat-graph")?;
    let source = include_str!("graph.c");
    let libraries = ["-I/usr/include/igraph", "-ligraph", "-lm"];
    let program = folder.compile(NAME, source, &libraries, NEEDS, bench.stop)?;
    let job = Job {
        name: NAME,
        bytes,
        folder: &folder,
        words: vec![program.display().to_string(), (bytes / VERTEX_BYTES).ilog2().to_string()],
        needs: NEEDS,
        result: &|said| {
            let (wrong, checksum) = said.trim().split_once(' ').ok_or_else(|| {
                Error::Failed(format!("the program printed {said:?} of its graph"))
            })?;
            let wrong = wrong.parse().map_err(during("read the number of wrong vertices"))?;
            Ok(Outcome { content: checksum.into(), wrong, figures: Vec::new() })
        },
    };
    job.measure(bench, options.runs, system)
}
