//! Where heat comes from, and why not from somewhere better.

use cowslip_promote::{HeatSource, ProbedHeatSource, probe_heat_sources};
use serde_json::{Value, json};

/// The source of heat that is in use.
#[derive(Debug)]
pub(super) struct Heat {
    pub(super) source: HeatSource,
    sources: Vec<ProbedHeatSource>,
}

impl Heat {
    /// The best source there is, if heat is wanted; said, with what keeps the better ones from being used.
    pub(super) fn choose(is_wanted: bool) -> Self {
        if !is_wanted {
            return Self { source: HeatSource::None, sources: Vec::new() };
        }
        let sources = probe_heat_sources();
        let best = sources.iter().find(|source| source.answer.is_available());
        let source = best.map_or(HeatSource::None, |source| source.source);
        eprintln!("cowslip: heat is known {}", source.sentence());
        for source in sources.iter().take_while(|source| !source.answer.is_available()) {
            eprintln!("cowslip: not {}: {}", source.source.sentence(), source.detail);
        }
        Self { source, sources }
    }

    /// Says that the source has changed, if it has.
    pub(super) fn follow(&mut self, source: HeatSource) {
        if self.source != source {
            eprintln!("cowslip: heat is known {} from now on", source.sentence());
            self.source = source;
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let source = |source: &ProbedHeatSource| json!({"source": source.source, "answer": source.answer.word(), "detail": source.detail});
        json!({
            "source": self.source,
            "ladder": self.sources.iter().map(source).collect::<Vec<_>>(),
        })
    }
}
