//! Where heat comes from, and why not from somewhere better.

use cowslip_promote::{HeatSource, Rung, ladder};
use serde_json::{Value, json};

/// The rung of the ladder that is in use.
#[derive(Debug)]
pub(super) struct Heat {
    pub(super) source: HeatSource,
    rungs: Vec<Rung>,
}

impl Heat {
    /// The best source there is, if heat is wanted; said, with what keeps the better ones from being used.
    pub(super) fn choose(is_wanted: bool) -> Self {
        if !is_wanted {
            return Self { source: HeatSource::None, rungs: Vec::new() };
        }
        let rungs = ladder();
        let best = rungs.iter().find(|rung| rung.answer.is_available());
        let source = best.map_or(HeatSource::None, |rung| rung.source);
        eprintln!("cowslip: heat is known {}", source.sentence());
        for rung in rungs.iter().take_while(|rung| !rung.answer.is_available()) {
            eprintln!("cowslip: not {}: {}", rung.source.sentence(), rung.detail);
        }
        Self { source, rungs }
    }

    /// Says that the source has changed, if it has.
    pub(super) fn follow(&mut self, source: HeatSource) {
        if self.source != source {
            eprintln!("cowslip: heat is known {} from now on", source.sentence());
            self.source = source;
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let rung = |rung: &Rung| json!({"source": rung.source, "answer": rung.answer.word(), "detail": rung.detail});
        json!({
            "source": self.source,
            "ladder": self.rungs.iter().map(rung).collect::<Vec<_>>(),
        })
    }
}
