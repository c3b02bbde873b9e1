//! The doctor's findings as JSON (schema `cowslip.doctor/1`): the library's report, and the uses of this command.

use cowslip::host::Report;
use serde_json::{Value, json};

use super::exit_code;
use super::summary::verdict;
use super::uses::Use;

pub(super) fn document(report: &Report, uses: &[Use]) -> Value {
    let mut document = report.to_json();
    document["uses"] = uses.iter().map(one_use).collect();
    document["verdict"]["exit_code"] = json!(exit_code(report.standing()));
    document["verdict"]["line"] = json!(verdict(report, uses));
    document
}

fn one_use(usage: &Use) -> Value {
    json!({
        "name": usage.name,
        "by": usage.by,
        "works": usage.works.word(),
        "why": usage.why,
        "fixes": usage.fixes,
    })
}
