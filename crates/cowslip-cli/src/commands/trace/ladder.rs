//! `cowslip trace ladder`: what each privilege lets one see.

use std::path::Path;
use std::process::ExitCode;

use cowslip_report::{json, sink};
use cowslip_trace::record::{self, Answer as Found, Rung};
use serde_json::{Value, json};

use super::args::LadderArgs;
use crate::exit::{self, Answer, DENIED, UNSUPPORTED};

pub(super) fn run(args: &LadderArgs) -> Answer {
    let ladder = record::ladder();
    if let Some(file) = &args.json {
        json::write(&to_json(&ladder), file).map_err(exit::io("write the ladder"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        sink::print(&table(&ladder)).map_err(exit::io("print the ladder"))?;
    }
    // Without the first rung nothing can be traced.
    Ok(match ladder.first().map(|rung| &rung.answer) {
        Some(Found::Available) => ExitCode::SUCCESS,
        Some(Found::Denied { .. }) => DENIED.into(),
        _ => UNSUPPORTED.into(),
    })
}

fn to_json(ladder: &[Rung]) -> Value {
    let rungs = ladder.iter().map(|rung| {
        let (errno, mend) = match &rung.answer {
            Found::Unknown { errno } => (Some(errno), None),
            Found::Denied { mend } => (None, Some(mend)),
            _ => (None, None),
        };
        let mut value =
            json!({"name": rung.name, "gives": rung.gives, "answer": rung.answer.word()});
        if let Some(errno) = errno {
            value["errno"] = json!(errno);
        }
        if let Some(mend) = mend {
            value["mend"] = json!(mend);
        }
        value
    });
    json!({"schema": "cowslip.trace-ladder/1", "rungs": rungs.collect::<Vec<_>>()})
}

fn table(ladder: &[Rung]) -> String {
    let mut text = format!("{:15}{:10}gives\n", "source", "here");
    for rung in ladder {
        text += &format!("{:15}{:10}{}\n", rung.name, rung.answer.to_string(), rung.gives);
        if let Found::Denied { mend } = rung.answer {
            text += &format!("{:25}as root, or after `{mend}`\n", "");
        }
    }
    text
}
