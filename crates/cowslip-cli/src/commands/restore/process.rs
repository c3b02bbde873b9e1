//! A process from the folder that `cowslip checkpoint` wrote, or from an object store.

use std::io::{self, Write};
use std::process::ExitCode;

use cowslip_criu::{Kept, Keys, PrivateFolder, restore};
use cowslip_report::json;
use serde_json::json;

use super::Args;
use crate::commands::signals;
use crate::commands::stored::Stored;
use crate::exit::{self, CommandResult, Failure};

pub(super) fn run(args: &Args) -> CommandResult {
    let kept = Kept::open(&args.image, &keys(args)?, &args.base)?;
    // From here on a signal that ended this process would take memory from the other.
    let _stop = signals::interrupt().map_err(exit::system("listen for Ctrl-C"))?;
    run_kept(args, kept)
}

/// From an object store. Its files are fetched into a folder that is removed at the end.
pub(super) fn run_stored(args: &Args, stored: &Stored) -> CommandResult {
    if !args.base.is_empty() {
        let message = "--base is for the folder of a checkpoint: one in a store is whole";
        return Err(Failure::new(exit::USAGE, message.to_owned()));
    }
    let stop = signals::interrupt().map_err(exit::system("listen for Ctrl-C"))?;
    let folder = PrivateFolder::create()?;
    let kept = stored.fetch(folder.path(), &keys(args)?, &stop)?;
    run_kept(args, kept)
}

fn keys(args: &Args) -> Result<Keys, Failure> {
    let mut keys = Keys::default();
    args.identity.iter().try_for_each(|file| keys.add_identities(file))?;
    Ok(keys)
}

fn run_kept(args: &Args, kept: Kept) -> CommandResult {
    let tell = |message: &str| errln!("cowslip: {message}");
    let running = |pid| {
        // A failure must not end this command here: memory that has not come yet would be lost.
        if args.json.is_none() {
            let mut out = io::stdout();
            let _ = writeln!(out, "process {pid} runs").and_then(|()| out.flush());
        }
    };
    let done = restore(kept, &args.criu, args.eager, &tell, running)?;
    if let Some(file) = &args.json {
        let result = json!({
            "schema": "cowslip.restored/1",
            "pid": done.pid,
            "ran_after_ns": done.ran_after.as_nanos() as u64,
            "late_pages": done.served.pages,
            "took_ns": done.served.took.as_nanos() as u64,
        });
        json::write(&result, file).map_err(exit::io("write the result"))?;
    } else {
        outln!(
            "it ran after {:.3} s; {} pages came {}, in {:.3} s",
            done.ran_after.as_secs_f64(),
            done.served.pages,
            if args.eager { "before" } else { "afterwards" },
            done.served.took.as_secs_f64()
        );
    }
    Ok(ExitCode::SUCCESS)
}
