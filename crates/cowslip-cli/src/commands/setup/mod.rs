//! `cowslip setup`: prepares the machine for ordinary users' programs, once, by root.

mod args;

use std::path::Path;
use std::process::ExitCode;

use cowslip_report::{Paint, json, sink};
use cowslip_setup::Plan;
use cowslip_sys::process;

use crate::exit::{self, CommandResult, DENIED, Failure, NO, USAGE};
pub(super) use args::Args;

pub(super) fn run(args: Args) -> CommandResult {
    let may_change = args.dry_run || args.root.is_some() || process::effective_uid() == 0;
    if !may_change {
        let why = "setup changes the system: run it as root, with sudo, or look with --dry-run";
        return Err(Failure::new(DENIED, why));
    }
    let steps = cowslip_setup::run(&Plan {
        services: args.services,
        users: args.users,
        undo: args.undo,
        dry_run: args.dry_run,
        keep_shmem_enabled: args.keep_shmem_enabled,
        root: args.root,
        installed: super::run::libraries()
            .map(|[library, _]| library)
            .map_err(|failure| failure.to_string()),
    })
    .map_err(|unknown| {
        Failure::new(USAGE, format!("nothing was changed: {}", unknown.join("; ")))
    })?;
    if let Some(file) = &args.json {
        json::write(&steps.document(args.undo), file).map_err(exit::io("write the report"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        sink::print(&steps.lines(Paint::of_stdout())).map_err(exit::io("print the steps"))?;
    }
    Ok(if steps.all_well() { ExitCode::SUCCESS } else { ExitCode::from(NO) })
}
