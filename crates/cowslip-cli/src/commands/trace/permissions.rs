//! `cowslip trace permissions`: the view that each privilege gives here, and the command that grants it.

use std::path::Path;
use std::process::ExitCode;

use cowslip_report::{json, sink};
use cowslip_trace::record::{self, Permission, PermissionStatus};
use serde_json::{Value, json};

use super::args::PermissionsArgs;
use crate::exit::{self, CommandResult, DENIED, UNSUPPORTED};

pub(super) fn run(args: &PermissionsArgs) -> CommandResult {
    let permissions = record::permissions();
    if let Some(file) = &args.json {
        json::write(&to_json(&permissions), file).map_err(exit::io("write the permissions"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        sink::print(&table(&permissions)).map_err(exit::io("print the permissions"))?;
    }
    // Without the first permission nothing can be traced.
    Ok(match permissions.first().map(|permission| &permission.status) {
        Some(PermissionStatus::Available) => ExitCode::SUCCESS,
        Some(PermissionStatus::Denied { .. }) => DENIED.into(),
        _ => UNSUPPORTED.into(),
    })
}

fn to_json(permissions: &[Permission]) -> Value {
    let all = permissions.iter().map(|permission| {
        let (errno, fix) = match &permission.status {
            PermissionStatus::Unknown { errno } => (Some(errno), None),
            PermissionStatus::Denied { fix } => (None, Some(fix)),
            _ => (None, None),
        };
        let mut value =
            json!({"name": permission.name, "gives": permission.gives, "answer": permission.status.word()});
        if let Some(errno) = errno {
            value["errno"] = json!(errno);
        }
        if let Some(fix) = fix {
            value["fix"] = json!(fix);
        }
        value
    });
    json!({"schema": "cowslip.trace-permissions/1", "permissions": all.collect::<Vec<_>>()})
}

/// A table of the permissions, each with its status and the command that grants it.
pub(in crate::commands) fn table(permissions: &[Permission]) -> String {
    let mut text = format!("{:15}{:10}gives\n", "source", "here");
    for permission in permissions {
        text += &format!(
            "{:15}{:10}{}\n",
            permission.name,
            permission.status.to_string(),
            permission.gives
        );
        if let Some(advice) = permission.status.advice() {
            text += &format!("{:25}{advice}\n", "");
        }
    }
    text
}
