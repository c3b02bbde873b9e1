//! `cowslip promote advise`: the sizes of pages for one process.

use std::path::Path;
use std::process::ExitCode;

use cowslip::units::ByteCount;
use cowslip_promote::{Advice, Recommendation, SizeAdvice, Target, percent};
use cowslip_report::{self as output, sink, text};
use cowslip_sys::procfs;
use serde_json::{Value, json};

use super::args::AdviseArgs;
use crate::exit::{self, CommandResult};

pub(super) fn run(args: &AdviseArgs) -> CommandResult {
    let target = Target::open(args.pid, 1)?;
    let advice = target.advice(args.threshold)?;
    let line = sentence(&advice, args.pid);
    if let Some(file) = &args.json {
        let whole = to_json(target.name(), args, &advice, &line);
        output::json::write(&whole, file).map_err(exit::io("write the advice"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        let table = table(target.name(), args, &advice);
        sink::print(&(table + &line + "\n")).map_err(exit::io("print the advice"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn to_json(name: &str, args: &AdviseArgs, advice: &Advice, line: &str) -> Value {
    let sizes = advice.sizes.iter().map(|size| json!({"size": size, "setting": setting(size)}));
    json!({
        "schema": "cowslip.promote.advise/1",
        "pid": args.pid,
        "name": name,
        "threshold_percent": args.threshold,
        "resident_bytes": advice.resident_bytes,
        "huge_bytes": advice.huge_bytes,
        "sizes": sizes.collect::<Vec<_>>(),
        "advice": line,
    })
}

fn table(name: &str, args: &AdviseArgs, advice: &Advice) -> String {
    let (name, size) = (text::printable(name), |bytes| ByteCount(bytes).to_string());
    let title = format!(
        "{name} ({}): {} of private anonymous memory, {} of it huge",
        args.pid,
        size(advice.resident_bytes),
        size(advice.huge_bytes)
    );
    let dense = format!("from {} % used:", args.threshold);
    let heads = ["pages", "setting", "covered", "more", "entries", &dense, "more", "entries"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let share = |bytes| percent(ratio(bytes, advice));
    for row in &advice.sizes {
        rows.push(vec![
            size(row.page_bytes),
            setting(row).unwrap_or_else(|| "–".to_owned()),
            share(row.covered_bytes),
            size(row.added_bytes),
            row.entries.to_string(),
            share(row.dense_covered_bytes),
            size(row.dense_added_bytes),
            row.dense_entries.to_string(),
        ]);
    }
    let rows: String =
        text::align(&rows).iter().map(|line| line.trim_end().to_owned() + "\n").collect();
    format!("{title}\n\n{rows}\n")
}

fn ratio(bytes: u64, advice: &Advice) -> Option<f64> {
    (advice.resident_bytes > 0).then(|| bytes as f64 / advice.resident_bytes as f64)
}

/// The kernel's setting of a size, if it has that size.
fn setting(size: &SizeAdvice) -> Option<String> {
    procfs::size_policy(size.page_bytes).ok().map(|policy| policy.word().to_owned())
}

fn sentence(advice: &Advice, pid: i32) -> String {
    let share = |bytes| percent(ratio(bytes, advice));
    match advice.recommendation() {
        Recommendation::Promote(size) => format!(
            "advice: huge pages where it is dense: {} of it for {} more (cowslip promote measure {pid})",
            share(size.dense_covered_bytes),
            ByteCount(size.dense_added_bytes)
        ),
        Recommendation::AtFault(size) => format!(
            "advice: pages of {} at faults: {} of it for {} more ({}/enabled: always, for all programs)",
            ByteCount(size.page_bytes),
            share(size.covered_bytes),
            ByteCount(size.added_bytes),
            procfs::size_folder(size.page_bytes)
        ),
        Recommendation::TooLittle => "advice: none: less than 16 MiB are in use".to_owned(),
        Recommendation::None => {
            "advice: none: each size costs more than 10 % more memory, or covers less than half"
                .to_owned()
        }
    }
}
