//! `cowslip image push`, `pull`, `ls` and `prune`: images in object stores.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cowslip::image::Progress as Done;
use cowslip::units::ByteCount;
use cowslip_report::Progress;
use serde_json::Value;

use super::args::{LsArgs, PruneArgs, PullArgs, PushArgs};
use super::{age, write};
use crate::commands::signals;
use crate::exit::{self, CommandResult, Failure};
use crate::remote;

pub(super) fn push(args: &PushArgs) -> CommandResult {
    let remote = remote::of(&args.url)?;
    let latest = args.latest.as_deref();
    let pushed = with_progress(&format!("sending {}", args.file.display()), |progress| {
        remote.push(&args.file, &args.url, latest, progress)
    })?;
    if let Some(file) = &args.json {
        write(&pushed, file)?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!(
        "{}: {} in {} images",
        text(&pushed["url"]),
        bytes(&pushed["sent_bytes"]),
        pushed["sent_images"]
    );
    if let Some(pointer) = pushed["latest"].as_object() {
        outln!("{}: {}", args.latest.as_deref().unwrap_or_default(), text(&pointer["image"]));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn pull(args: &PullArgs) -> CommandResult {
    let remote = remote::of(&args.url)?;
    let pulled = with_progress(&format!("fetching {}", args.url), |progress| {
        remote.pull(&args.url, &args.file, progress)
    })?;
    if let Some(file) = &args.json {
        write(&pulled, file)?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!("{}: {} in {} images", args.file.display(), bytes(&pulled["bytes"]), pulled["images"]);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn ls(args: &LsArgs) -> CommandResult {
    let listed = remote::of(&args.url)?.list(&args.url)?;
    if let Some(file) = &args.json {
        write(&listed, file)?;
        return Ok(ExitCode::SUCCESS);
    }
    for image in listed["images"].as_array().into_iter().flatten() {
        let name = text(&image["name"]);
        match image["pointer"].as_object() {
            Some(pointer) => outln!("{name:<32} -> {}", text(&pointer["image"])),
            None => outln!(
                "{name:<32} {:>10}  {:<12} {}{}",
                bytes(&image["bytes"]).to_string(),
                age(image["created_unix_ns"].as_u64().unwrap_or_default()),
                text(&image["identity"]),
                if image["parent"].is_null() { "" } else { "  incremental" }
            ),
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn prune(args: &PruneArgs) -> CommandResult {
    let remote = remote::of(&args.url)?;
    let (keep, merge) = (args.keep as usize, args.merge.map(|longest| longest as usize));
    let grace = Duration::from_secs(args.grace.into());
    let pruned = with_progress(&format!("pruning {}", args.url), |progress| {
        remote.prune(&args.url, keep, merge, grace, args.dry_run, progress)
    })?;
    if let Some(file) = &args.json {
        write(&pruned, file)?;
        return Ok(ExitCode::SUCCESS);
    }
    let names = |key: &str| pruned[key].as_array().cloned().unwrap_or_default();
    for merged in names("merged") {
        outln!("merge   {} into {}", text(&merged["image"]), text(&merged["into"]));
    }
    names("deleted").iter().for_each(|name| outln!("delete  {}", text(name)));
    outln!(
        "{}{} images deleted, {}; {} stay",
        if args.dry_run { "would be: " } else { "" },
        names("deleted").len(),
        bytes(&pruned["deleted_bytes"]),
        names("kept").len()
    );
    Ok(ExitCode::SUCCESS)
}

/// Does long work, which Ctrl-C breaks off: an upload is aborted then, and no file is left.
fn with_progress<T>(
    phase: &str,
    work: impl FnOnce(cowslip::image::OnProgress<'_>) -> cowslip::Result<T>,
) -> Result<T, Failure> {
    let stop = signals::interrupt().map_err(exit::io("listen for Ctrl-C"))?;
    let mut progress = Progress::new();
    progress.phase(phase);
    let done = work(&mut |done: Done| {
        progress.set_bytes(done.done_bytes, done.total_bytes);
        if stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    progress.finish();
    Ok(done)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn bytes(value: &Value) -> ByteCount {
    ByteCount(value.as_u64().unwrap_or_default())
}
