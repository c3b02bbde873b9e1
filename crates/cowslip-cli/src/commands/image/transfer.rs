//! `cowslip image push`, `pull`, `ls` and `prune`: images in object stores.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cowslip::image::{OnProgress, Progress as Done};
use cowslip::units::ByteCount;
use cowslip_remote::{Listed, ListedKind, PruneOptions};
use cowslip_report::Progress;
use serde_json::{Value, json};

use super::args::{LsArgs, PruneArgs, PullArgs, PushArgs};
use super::{age, write};
use crate::commands::signals;
use crate::exit::{self, CommandResult, Failure, USAGE};
use crate::remote::is_url;

pub(super) fn push(args: &PushArgs) -> CommandResult {
    check_url(&args.url)?;
    let latest = args.latest.as_deref();
    let pushed = with_progress(&format!("sending {}", args.file.display()), |progress| {
        cowslip_remote::push(&args.file, &args.url, latest, progress)
    })?;
    if let Some(file) = &args.json {
        let value = json!({
            "schema": "cowslip.image-push/1",
            "url": pushed.url,
            "sent_images": pushed.sent_images,
            "sent_bytes": pushed.sent_bytes,
            "latest": pushed.latest,
        });
        write(&value, file)?;
        return Ok(ExitCode::SUCCESS);
    }
    let sent = ByteCount(pushed.sent_bytes);
    outln!("{}: {sent} in {} images", pushed.url, pushed.sent_images);
    if let Some(pointer) = pushed.latest {
        outln!("{}: {}", latest.unwrap_or_default(), pointer.image);
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn pull(args: &PullArgs) -> CommandResult {
    check_url(&args.url)?;
    let pulled = with_progress(&format!("fetching {}", args.url), |progress| {
        cowslip_remote::pull(&args.url, &args.file, progress)
    })?;
    if let Some(file) = &args.json {
        let value = json!({
            "schema": "cowslip.image-pull/1",
            "images": pulled.images,
            "bytes": pulled.bytes,
        });
        write(&value, file)?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!("{}: {} in {} images", args.file.display(), ByteCount(pulled.bytes), pulled.images);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn ls(args: &LsArgs) -> CommandResult {
    check_url(&args.url)?;
    let images = cowslip_remote::list(&args.url)?;
    if let Some(file) = &args.json {
        let images: Vec<Value> = images.iter().map(to_json).collect();
        write(&json!({"schema": "cowslip.image-ls/1", "images": images}), file)?;
        return Ok(ExitCode::SUCCESS);
    }
    for Listed { name, bytes, kind, .. } in &images {
        match kind {
            ListedKind::Pointer(pointer) => outln!("{name:<32} -> {}", pointer.image),
            ListedKind::Image { identity, parent, created_unix_ns } => outln!(
                "{name:<32} {:>10}  {:<12} {identity}{}",
                ByteCount(*bytes).to_string(),
                age(*created_unix_ns),
                if parent.is_some() { "  incremental" } else { "" }
            ),
            _ => outln!("{name:<32} {:>10}", ByteCount(*bytes).to_string()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn to_json(listed: &Listed) -> Value {
    match &listed.kind {
        ListedKind::Image { identity, parent, created_unix_ns } => json!({
            "name": listed.name,
            "bytes": listed.bytes,
            "identity": identity.to_string(),
            "parent": parent.map(|parent| parent.to_string()),
            "created_unix_ns": created_unix_ns,
        }),
        ListedKind::Pointer(pointer) => json!({"name": listed.name, "pointer": pointer}),
        _ => json!({"name": listed.name, "bytes": listed.bytes}),
    }
}

pub(super) fn prune(args: &PruneArgs) -> CommandResult {
    check_url(&args.url)?;
    let mut options = PruneOptions::keep(args.keep as usize)
        .grace(Duration::from_secs(args.grace.into()))
        .dry_run(args.dry_run);
    options.merge = args.merge.map(|longest| longest as usize);
    let pruned = with_progress(&format!("pruning {}", args.url), |progress| {
        cowslip_remote::prune(&args.url, options, progress)
    })?;
    if let Some(file) = &args.json {
        let merged = pruned.merged.iter();
        let merged = merged.map(|(image, into)| json!({"image": image, "into": into}));
        let value = json!({
            "schema": "cowslip.image-prune/1",
            "dry_run": args.dry_run,
            "merged": merged.collect::<Vec<_>>(),
            "deleted": pruned.deleted,
            "deleted_bytes": pruned.deleted_bytes,
            "kept": pruned.kept,
        });
        write(&value, file)?;
        return Ok(ExitCode::SUCCESS);
    }
    pruned.merged.iter().for_each(|(image, into)| outln!("merge   {image} into {into}"));
    pruned.deleted.iter().for_each(|name| outln!("delete  {name}"));
    outln!(
        "{}{} images deleted, {}; {} stay",
        if args.dry_run { "would be: " } else { "" },
        pruned.deleted.len(),
        ByteCount(pruned.deleted_bytes),
        pruned.kept.len()
    );
    Ok(ExitCode::SUCCESS)
}

fn check_url(url: &str) -> Result<(), Failure> {
    match is_url(OsStr::new(url)) {
        true => Ok(()),
        false => {
            Err(Failure::new(USAGE, format!("{url} is no URL: s3://…, gs://…, az://…, https://…")))
        }
    }
}

/// Does long work that Ctrl-C stops: an upload is aborted, and no file is left.
fn with_progress<T>(
    phase: &str,
    work: impl FnOnce(OnProgress<'_>) -> cowslip::Result<T>,
) -> Result<T, Failure> {
    let stop = signals::interrupt().map_err(exit::system("listen for Ctrl-C"))?;
    let mut progress = Progress::new();
    progress.phase(phase);
    let done = work(&mut |done: Done| {
        progress.set_bytes(done.done_bytes, done.total_bytes);
        if stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    progress.finish();
    Ok(done)
}
