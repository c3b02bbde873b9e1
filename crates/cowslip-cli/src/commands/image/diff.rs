//! `cowslip image diff`: the differences between two images.

use std::process::ExitCode;

use cowslip::image::Diff;
use cowslip::units::ByteCount;
use cowslip_report::Progress;
use serde_json::json;

use super::args::DiffArgs;
use super::{bytes_of, write};
use crate::exit::{CommandResult, NO};
use crate::remote;

/// Ranges of an arena that are listed for people.
const MOST_RANGES: usize = 16;

/// Shows the differences; the exit code says if there are any.
pub(super) fn diff(args: &DiffArgs) -> CommandResult {
    let (first, second) = (remote::open(&args.first)?, remote::open(&args.second)?);
    let mut progress = Progress::new();
    progress.phase("comparing");
    let diff = first.diff(&second, &mut bytes_of(&progress))?;
    progress.finish();
    match &args.json {
        Some(file) => {
            let identities = [&first, &second].map(|image| image.identity().to_string());
            let same = diff.is_empty();
            let value = json!({"schema": "cowslip.image-diff/1", "identities": identities,
                "same": same, "diff": diff});
            write(&value, file)?;
        }
        None => print(&diff),
    }
    Ok(if diff.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(NO) })
}

fn print(diff: &Diff) {
    if diff.is_empty() {
        return outln!("the same");
    }
    for arena in &diff.arenas {
        outln!(
            "arena {}: {} chunks, {} pages, {} differ",
            arena.arena,
            arena.chunks,
            arena.pages,
            ByteCount(arena.bytes)
        );
        for range in arena.ranges.iter().take(MOST_RANGES) {
            let end = range.offset_bytes + range.length_bytes;
            let length = ByteCount(range.length_bytes);
            outln!("  {:#x}..{end:#x} ({length})", range.offset_bytes);
        }
        if let Some(more) = arena.ranges.len().checked_sub(MOST_RANGES).filter(|more| *more > 0) {
            outln!("  and {more} more ranges (--json has all)");
        }
    }
    for (what, names) in [("root", &diff.roots), ("user", &diff.user)] {
        names.iter().for_each(|name| outln!("{what} {name}: differs"));
    }
    if diff.has_other_layout {
        outln!("other memory was handed out, or is otherwise protected");
    }
}
