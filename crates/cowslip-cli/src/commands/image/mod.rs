//! `cowslip image`: shows the contents of an image and checks it.

mod args;
mod diff;
mod merge;
#[cfg(feature = "remote")]
mod transfer;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use cowslip::image::{Image, Progress as Done};
use cowslip::units::ByteCount;
use cowslip_report::{Progress, json};
use serde_json::{Value, json};

use crate::exit::{self, CommandResult, Failure};
use crate::remote;

pub(super) use args::Action;
use args::ImageArgs;

pub(super) fn run(action: &Action) -> CommandResult {
    match action {
        Action::Info(args) => info(args),
        Action::Verify(args) => verify(args),
        Action::Diff(args) => diff::diff(args),
        Action::Merge(args) => merge::merge(args),
        #[cfg(feature = "remote")]
        Action::Push(args) => transfer::push(args),
        #[cfg(feature = "remote")]
        Action::Pull(args) => transfer::pull(args),
        #[cfg(feature = "remote")]
        Action::Ls(args) => transfer::ls(args),
        #[cfg(feature = "remote")]
        Action::Prune(args) => transfer::prune(args),
        #[cfg(not(feature = "remote"))]
        Action::Push(args::PushArgs { url, .. })
        | Action::Pull(args::PullArgs { url, .. })
        | Action::Ls(args::LsArgs { url, .. })
        | Action::Prune(args::PruneArgs { url, .. }) => Err(remote::absent(url)),
    }
}

/// Shows the descriptions of an image and of those that it needs.
fn info(args: &ImageArgs) -> CommandResult {
    let image = remote::open(&args.file)?;
    if let Some(file) = &args.json {
        write(&to_json(&image), file)?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&image);
    for ancestor in image.ancestors() {
        outln!();
        print(ancestor);
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks every byte of an image and of those that it needs.
fn verify(args: &ImageArgs) -> CommandResult {
    let image = remote::open(&args.file)?;
    let mut progress = Progress::new();
    for image in std::iter::once(&image).chain(image.ancestors()) {
        progress.phase(&format!("verifying {}", image.path().display()));
        image.verify(&mut bytes_of(&progress))?;
    }
    progress.finish();
    if let Some(file) = &args.json {
        write(&to_json(&image), file)?;
        return Ok(ExitCode::SUCCESS);
    }
    let summary = image.summary();
    outln!("{}: whole, {} chunks of 2 MiB", args.file.display(), summary.chunks);
    Ok(ExitCode::SUCCESS)
}

/// Reports progress in bytes.
fn bytes_of(progress: &Progress) -> impl FnMut(Done) -> ControlFlow<()> {
    |done| {
        progress.set_bytes(done.done_bytes, done.total_bytes);
        ControlFlow::Continue(())
    }
}

fn write(value: &Value, file: &Path) -> Result<(), Failure> {
    json::write(value, file).map_err(exit::io("write the answer"))
}

fn to_json(image: &Image) -> Value {
    let one = |image: &Image| {
        let summary = image.summary();
        json!({
            "file": image.path(),
            "identity": summary.identity.to_string(),
            "parent": summary.parent.map(|parent| parent.to_string()),
            "created_unix_ns": summary.created_unix_ns,
            "file_bytes": summary.file_bytes,
            "chunks": summary.chunks,
            "used_bytes": summary.used_bytes,
            "description": image.description(),
        })
    };
    let ancestors: Vec<Value> = image.ancestors().iter().map(one).collect();
    json!({"schema": "cowslip.image/1", "image": one(image), "ancestors": ancestors})
}

fn print(image: &Image) {
    let summary = image.summary();
    outln!("{}", image.path().display());
    let mut rows = vec![
        ("identity", summary.identity.to_string()),
        ("parent", summary.parent.map_or("none: it is complete".into(), |id| id.to_string())),
        ("age", age(summary.created_unix_ns)),
        ("file", ByteCount(summary.file_bytes).to_string()),
        ("memory in use", ByteCount(summary.used_bytes).to_string()),
        ("chunks of 2 MiB held", summary.chunks.to_string()),
    ];
    for (i, arena) in image.description().arenas.iter().enumerate() {
        let text = format!(
            "{} at {:#x}, {} pieces",
            ByteCount(arena.length_bytes),
            arena.start_address,
            arena.pieces.len()
        );
        rows.push(("arena", if i == 0 { text } else { format!("{i}: {text}") }));
    }
    for (name, root) in &image.description().roots {
        let place = format!("arena {} + {:#x}", root.arena, root.offset_bytes);
        rows.push(("root", format!("{name}: {} at {place}", ByteCount(root.length_bytes))));
    }
    rows.extend(
        image.description().user.iter().map(|(name, value)| ("user", format!("{name}: {value}"))),
    );
    for (name, value) in rows {
        outln!("  {name:<22} {value}");
    }
}

fn age(created_unix_ns: u64) -> String {
    let created = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(created_unix_ns);
    match created.elapsed() {
        Ok(age) if age.as_secs() >= 172_800 => format!("{} days", age.as_secs() / 86_400),
        Ok(age) if age.as_secs() >= 7_200 => format!("{} hours", age.as_secs() / 3_600),
        Ok(age) if age.as_secs() >= 120 => format!("{} minutes", age.as_secs() / 60),
        Ok(age) => format!("{} seconds", age.as_secs()),
        Err(_) => "in the future".into(),
    }
}
