//! `cowslip trace ladder`: what each privilege lets one see.

use std::path::Path;
use std::process::ExitCode;

use cowslip_report::{json, sink};
use cowslip_trace::record::{self, Answer as Found, Permission};
use serde_json::{Value, json};

use super::args::LadderArgs;
use crate::exit::{self, Answer, DENIED, UNSUPPORTED};

pub(super) fn run(args: &LadderArgs) -> Answer {
    let ladder = record::permissions();
    if let Some(file) = &args.json {
        json::write(&to_json(&ladder), file).map_err(exit::io("write the ladder"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        sink::print(&table(&ladder)).map_err(exit::io("print the ladder"))?;
    }
    // Without the first permission nothing can be traced.
    Ok(match ladder.first().map(|permission| &permission.answer) {
        Some(Found::Available) => ExitCode::SUCCESS,
        Some(Found::Denied { .. }) => DENIED.into(),
        _ => UNSUPPORTED.into(),
    })
}

fn to_json(ladder: &[Permission]) -> Value {
    let permissions = ladder.iter().map(|permission| {
        let (errno, fix) = match &permission.answer {
            Found::Unknown { errno } => (Some(errno), None),
            Found::Denied { fix } => (None, Some(fix)),
            _ => (None, None),
        };
        let mut value =
            json!({"name": permission.name, "gives": permission.gives, "answer": permission.answer.word()});
        if let Some(errno) = errno {
            value["errno"] = json!(errno);
        }
        if let Some(fix) = fix {
            value["fix"] = json!(fix);
        }
        value
    });
    json!({"schema": "cowslip.trace-ladder/1", "permissions": permissions.collect::<Vec<_>>()})
}

fn table(ladder: &[Permission]) -> String {
    let mut text = format!("{:15}{:10}gives\n", "source", "here");
    for permission in ladder {
        text += &format!(
            "{:15}{:10}{}\n",
            permission.name,
            permission.answer.to_string(),
            permission.gives
        );
        if let Found::Denied { fix } = permission.answer {
            text += &format!("{:25}as root, or after `{fix}`\n", "");
        }
    }
    text
}
