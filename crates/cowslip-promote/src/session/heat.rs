//! The source of heat in use, and why not a better one.

use serde_json::{Value, json};

use super::operator::{Notice, Operator};
use crate::heat::{ProbedHeatSource, probe_heat_sources};
use crate::model::HeatSource;

/// The source of heat in use.
#[derive(Debug)]
pub(crate) struct Heat {
    pub(super) source: HeatSource,
    probed: Vec<ProbedHeatSource>,
}

impl Heat {
    /// Chooses the best available source if heat is wanted, and reports why better ones cannot be used.
    pub(super) fn choose(is_wanted: bool, operator: &mut dyn Operator) -> Self {
        if !is_wanted {
            return Self { source: HeatSource::None, probed: Vec::new() };
        }
        let probed = probe_heat_sources();
        let best = probed.iter().find(|probe| probe.answer.is_available());
        let source = best.map_or(HeatSource::None, |probe| probe.source);
        operator.tell(&Notice::HeatFrom(source));
        for probe in probed.iter().take_while(|probe| !probe.answer.is_available()) {
            operator.tell(&Notice::HeatNotFrom(probe.source, probe.detail));
        }
        Self { source, probed }
    }

    /// Reports a change of the source.
    pub(super) fn follow(&mut self, source: HeatSource, operator: &mut dyn Operator) {
        if self.source != source {
            operator.tell(&Notice::HeatNowFrom(source));
            self.source = source;
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let probed = |probe: &ProbedHeatSource| {
            json!({
                "source": probe.source,
                "answer": probe.answer.word(),
                "detail": probe.detail,
            })
        };
        json!({
            "source": self.source,
            "sources": self.probed.iter().map(probed).collect::<Vec<_>>(),
        })
    }
}
