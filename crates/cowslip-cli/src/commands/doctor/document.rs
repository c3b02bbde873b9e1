//! The doctor's findings as JSON (schema `cowslip.doctor/1`).

use cowslip::host::{Answer, Capability, Report, Standing};
use serde_json::{Map, Value, json};

use super::exit_code;
use super::summary::verdict;
use super::uses::Use;

pub(super) fn document(report: &Report, uses: &[Use]) -> Value {
    let capabilities: Vec<_> = report.capabilities.iter().map(capability).collect();
    let standing = report.standing();
    json!({
        "schema": "cowslip.doctor/1",
        "capabilities": capabilities,
        "uses": uses.iter().map(one_use).collect::<Vec<_>>(),
        "verdict": {
            "standing": word(standing),
            "exit_code": exit_code(standing),
            "huge_pages": report.has_huge_pages(),
            "line": verdict(report, uses),
            "sentence": report.sentence(),
            "fixes": report.fixes(),
        },
    })
}

fn one_use(it: &Use) -> Value {
    json!({"name": it.name, "by": it.by, "works": it.works.word(), "why": it.why, "fixes": it.fixes})
}

fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::Full => "full",
        Standing::Partly => "partly",
        Standing::Denied => "denied",
        Standing::Unsupported => "unsupported",
        Standing::Failed => "failed",
    }
}

/// Empty fields are left out.
fn capability(it: &Capability) -> Map<String, Value> {
    let (errno, hint) = match &it.answer {
        Answer::Unknown { errno } => (Some(*errno), None),
        Answer::Denied { hint } => (None, Some(hint)),
        _ => (None, None),
    };
    let detail = Some(&it.detail).filter(|detail| !detail.is_empty());
    let fields = [
        ("name", json!(it.name)),
        ("what_for", json!(it.what_for)),
        ("answer", json!(it.answer.word())),
        ("errno", json!(errno)),
        ("hint", json!(hint)),
        ("cost_ns", json!(it.cost.map(|cost| cost.ns))),
        ("cost_per", json!(it.cost.map(|cost| cost.per))),
        ("detail", json!(detail)),
        ("fix", json!(it.fix)),
    ];
    let said = fields.into_iter().filter(|(_, value)| !value.is_null());
    said.map(|(name, value)| (name.to_owned(), value)).collect()
}
