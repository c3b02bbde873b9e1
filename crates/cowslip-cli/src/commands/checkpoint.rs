//! `cowslip checkpoint`: a running process, kept in a folder while it goes on.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use cowslip::image::{Compression, OnProgress, Progress as Done};
use cowslip_criu::{CheckpointOptions, FolderOptions, Keys, checkpoint_and};
use cowslip_process::{Lack, look};
use cowslip_report::{Progress, json};
use serde_json::{Value, json};

use super::numbers::whole;
use super::promote::before_hold;
use super::signals;
use super::stored::Destination;
use crate::exit::{self, CommandResult, Failure};

const EXAMPLES: &str = "Examples:
  cowslip attach 4711                           # says what a copy would lack
  cowslip checkpoint 4711 -o shop.checkpoint
  cowslip restore shop.checkpoint
  cowslip checkpoint 4711 -o shop.checkpoint --stop      # to go on later
  cowslip checkpoint 4711 -o later.checkpoint --base shop.checkpoint
  age-keygen -o shop.key
  cowslip checkpoint 4711 -o secret.checkpoint --key-file shop.key
  cowslip checkpoint 4711 -o s3://bucket/shop.checkpoint

The process goes on after some milliseconds, or ends with --stop, and need not know Cowslip. It needs the right to trace the process, and \
CRIU, which needs root or CAP_CHECKPOINT_RESTORE with CAP_SYS_PTRACE. Connections are closed in the copy.";

const ENCRYPTION: &str = "Encryption";

/// Keep a running process, with all its threads, in a folder, while it goes on
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The process
    #[arg(value_parser = whole(1..=i32::MAX))]
    pid: i32,
    /// The folder to write, or its URL in an object store; it must not exist
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Write only memory that differs from this earlier checkpoint, which a restore needs too; further ones are places
    /// to look for its own bases
    #[arg(long, value_name = "FOLDER")]
    base: Vec<PathBuf>,
    /// none, lz4, zstd or zstd:LEVEL
    #[arg(long, default_value_t)]
    compression: Compression,
    /// Make its memory huge first (`cowslip promote --once`): it stands still for less time then
    #[arg(long)]
    promote: bool,
    /// End the program once the checkpoint is whole and on the disk; it does not run meanwhile
    #[arg(long)]
    stop: bool,
    /// Let the program go on, as is done without --stop
    #[arg(long = "leave-running", conflicts_with = "stop")]
    _leave_running: bool,
    /// Encrypt it to this X25519 recipient of age, age1…; may be repeated
    #[arg(long, value_name = "RECIPIENT", help_heading = ENCRYPTION)]
    recipient: Vec<String>,
    /// Encrypt it to the recipients in this file, one a line
    #[arg(long, value_name = "FILE", help_heading = ENCRYPTION)]
    recipients_file: Option<PathBuf>,
    /// Encrypt it to the identities in this file, as age-keygen writes it; they open the base too
    #[arg(long, value_name = "FILE", help_heading = ENCRYPTION)]
    key_file: Option<PathBuf>,
    /// Open an encrypted base by the identities in this file
    #[arg(long, value_name = "FILE", help_heading = ENCRYPTION)]
    identity: Option<PathBuf>,
    /// Keep memory that the program keeps out of core files (MADV_DONTDUMP), such as keys [default: it is left out]
    #[arg(long)]
    secrets: bool,
    /// The criu program
    #[arg(long, value_name = "PROGRAM", default_value = "criu")]
    criu: PathBuf,
    /// Write the result as JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let keys = args.keys()?;
    let destination = Destination::find(&args.output, !args.base.is_empty())?;
    if args.promote {
        before_hold(args.pid);
    }
    let plan = look(args.pid)?;
    let folder = &args.output;
    let mut lacks = plan.lacks().to_vec();
    lacks.retain(|lack| !(args.secrets && lack.is_secret()));
    if lacks.iter().all(|lack| !lack.is_fatal()) {
        lacks.iter().for_each(|lack| errln!("cowslip: {lack}"));
    }
    let stop = signals::interrupt().map_err(exit::system("listen for Ctrl-C"))?;
    let mut progress = Progress::new();
    progress.phase(&format!("writing {}", folder.display()));
    let mut advanced = |done: Done| {
        progress.set(done.done_bytes >> 20, done.total_bytes >> 20);
        if stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let folder_options =
        FolderOptions { compression: args.compression, bases: args.base.clone(), keys };
    let options = CheckpointOptions {
        folder: folder_options,
        criu: args.criu.clone(),
        has_secrets: args.secrets,
        stops: args.stop,
    };
    let take = |progress: OnProgress<'_>| destination.take(progress);
    let done = checkpoint_and(plan, destination.folder(), &options, &mut advanced, take)?;
    progress.finish();
    let process = &done.process;
    if let Some(file) = &args.json {
        let result = json!({
            "schema": "cowslip.checkpoint/1",
            "folder": folder,
            "pid": process.pid,
            "name": process.name,
            "threads": process.threads.len(),
            "pause_ns": process.pause_ns,
            "has_ended": args.stop,
            "memory_bytes": done.memory.memory.0,
            "own_memory_bytes": done.memory.own_memory.0,
            "image_bytes": done.memory.saved.file_bytes,
            "lacks": lacks.iter().map(to_json).collect::<Vec<_>>(),
        });
        json::write(&result, file).map_err(exit::io("write the result"))?;
    } else {
        let own = match args.base.is_empty() {
            true => String::new(),
            false => format!(", {} of it not in the base,", done.memory.own_memory),
        };
        outln!(
            "{}: {} ({}), {} threads, {} of memory{own} in {} bytes; {}",
            folder.display(),
            process.name,
            process.pid,
            process.threads.len(),
            done.memory.memory,
            done.memory.saved.file_bytes,
            match args.stop {
                true => "it has ended".to_owned(),
                false => format!("it stood still for {:.1} ms", process.pause_ns as f64 / 1e6),
            }
        );
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn keys(&self) -> Result<Keys, Failure> {
        let mut keys = Keys::default();
        self.recipient.iter().try_for_each(|recipient| keys.add_recipient(recipient))?;
        self.recipients_file.iter().try_for_each(|file| keys.add_recipients_file(file))?;
        self.key_file.iter().try_for_each(|file| keys.add_key_file(file))?;
        self.identity.iter().try_for_each(|file| keys.add_identities(file))?;
        Ok(keys)
    }
}

/// A thing that a copy lacks.
pub(super) fn to_json(lack: &Lack) -> Value {
    json!({"what": lack.what, "why": lack.thing.why, "is_fatal": lack.is_fatal()})
}
