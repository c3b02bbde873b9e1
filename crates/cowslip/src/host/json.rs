//! A report as JSON (schema `cowslip.doctor/1`).

use serde_json::{Map, Value, json};

use super::{Answer, Capability, Report, Standing};

impl Report {
    /// The report as a JSON object: its `schema`, the `capabilities` and the `verdict`. `cowslip doctor --json` adds to
    /// it.
    pub fn to_json(&self) -> Value {
        json!({
            "schema": "cowslip.doctor/1",
            "capabilities": self.capabilities.iter().map(capability).collect::<Vec<_>>(),
            "verdict": {
                "standing": self.standing().word(),
                "huge_pages": self.has_huge_pages(),
                "sentence": self.sentence(),
                "fixes": self.fixes(),
            },
        })
    }
}

impl Standing {
    fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Partly => "partly",
            Self::Denied => "denied",
            Self::Unsupported => "unsupported",
            Self::Failed => "failed",
        }
    }
}

/// Leaves out fields without a value.
fn capability(capability: &Capability) -> Map<String, Value> {
    let (errno, hint) = match &capability.answer {
        Answer::Unknown { errno } => (Some(*errno), None),
        Answer::Denied { hint } => (None, Some(hint)),
        _ => (None, None),
    };
    let detail = Some(&capability.detail).filter(|detail| !detail.is_empty());
    let fields = [
        ("name", json!(capability.name)),
        ("what_for", json!(capability.what_for)),
        ("answer", json!(capability.answer.word())),
        ("errno", json!(errno)),
        ("hint", json!(hint)),
        ("cost_ns", json!(capability.cost.map(|cost| cost.ns))),
        ("cost_per", json!(capability.cost.map(|cost| cost.per))),
        ("detail", json!(detail)),
        ("fix", json!(capability.fix)),
    ];
    let said = fields.into_iter().filter(|(_, value)| !value.is_null());
    said.map(|(name, value)| (name.to_owned(), value)).collect()
}
