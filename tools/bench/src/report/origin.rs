//! The machine, the commit and the date of a result, for people.

use serde_json::Value;

/// Such as `AMD EPYC, 2 processors, 23.5 GiB, Linux 6.18, commit 0123456789ab, 2026-11-27`.
pub(super) fn describe(report: &Value) -> String {
    let machine = &report["machine"];
    let text = |name: &str| machine[name].as_str().unwrap_or("unknown");
    let memory = machine["memory_bytes"].as_f64().unwrap_or_default() / f64::from(1 << 30);
    let commit = match machine["commit"].as_str() {
        Some(commit) => format!("commit `{commit}`"),
        None => "commit not recorded".to_owned(),
    };
    format!(
        "{}, {} processors, {memory:.1} GiB, Linux {}, {commit}, {}",
        text("cpu_model"),
        machine["cpus"],
        text("kernel_release"),
        text("date").split('T').next().unwrap_or_default(),
    )
}
