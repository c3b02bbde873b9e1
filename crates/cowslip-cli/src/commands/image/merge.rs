//! `cowslip image merge`: a chain of images into one.

use std::process::ExitCode;

use cowslip::image::{MergeOptions, merge as merge_chain};
use cowslip::units::ByteCount;
use cowslip_report::Progress;
use serde_json::json;

use super::args::MergeArgs;
use super::{bytes_of, write};
use crate::exit::CommandResult;
use crate::remote;

/// Writes one complete image of an image and those that it needs.
pub(super) fn merge(args: &MergeArgs) -> CommandResult {
    let image = remote::open(&args.file)?;
    let options = MergeOptions { compression: args.compress, ..MergeOptions::default() };
    let mut progress = Progress::new();
    progress.phase(&format!("merging {} images", image.ancestors().len() + 1));
    let saved = merge_chain(&image, &args.output, &options, &mut bytes_of(&progress))?;
    progress.finish();
    if let Some(file) = &args.json {
        let value = json!({
            "schema": "cowslip.image-merge/1",
            "file": args.output,
            "identity": saved.identity.to_string(),
            "images": image.ancestors().len() + 1,
            "file_bytes": saved.file_bytes,
            "chunks": saved.chunks,
            "took_ns": saved.took.as_nanos() as u64,
        });
        write(&value, file)?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!(
        "{}: complete, {} chunks of 2 MiB in {}",
        args.output.display(),
        saved.chunks,
        ByteCount(saved.file_bytes)
    );
    Ok(ExitCode::SUCCESS)
}
