//! The options of `cowslip image`.

use std::path::PathBuf;

use clap::Subcommand;
use cowslip::image::Compression;

use crate::commands::numbers::whole;

#[derive(Subcommand, Debug)]
pub(crate) enum Action {
    /// Say what an image holds and which others it needs
    Info(ImageArgs),
    /// Read every byte of an image and of those it needs, and check it (exit code 6: damaged)
    Verify(ImageArgs),
    Diff(DiffArgs),
    Merge(MergeArgs),
    Push(PushArgs),
    Pull(PullArgs),
    /// List the images in a folder of an object store
    Ls(LsArgs),
    Prune(PruneArgs),
}

/// Delete the images of a folder that are not needed, and merge long chains
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  cowslip image prune s3://bucket/stores/ --keep 7 --dry-run\n  \
    cowslip image prune s3://bucket/stores/ --keep 7 --merge 8\n\nWhat pointers name stays, and all that images \
    which stay need. Only images are deleted."
)]
pub(crate) struct PruneArgs {
    /// The folder
    pub(super) url: String,
    /// How many of the youngest images stay
    #[arg(long, value_name = "N", value_parser = whole(1..=u32::MAX))]
    pub(super) keep: u32,
    /// Merge chains of more images than this; the resulting image takes over the pointers
    #[arg(long, value_name = "N", value_parser = whole(1..=u32::MAX))]
    pub(super) merge: Option<u32>,
    /// Also keep images that were needed this long ago: they may still be read
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = whole(0..=u32::MAX))]
    pub(super) grace: u32,
    /// Say what would be done
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Send an image, and those it needs that are not there, to an object store
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip image push store.image s3://bucket/stores/\n  \
    cowslip image push store.image gs://bucket/stores/monday --latest latest\n\nIt is \
    there when it is whole; an upload that is broken off leaves nothing. Credentials come from the environment \
    (AWS_ACCESS_KEY_ID, AWS_ENDPOINT, GOOGLE_*, AZURE_*): docs/remote.md.")]
pub(crate) struct PushArgs {
    /// The image
    pub(super) file: PathBuf,
    /// Where it goes; one that ends in `/` is a folder
    pub(super) url: String,
    /// Point the object of this name beside it to it, unless that points to a younger one
    #[arg(long, value_name = "NAME")]
    pub(super) latest: Option<String>,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Fetch an image, and those it needs, from an object store or an HTTP server
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  cowslip image pull s3://bucket/stores/latest store.image\n\nEvery chunk \
    is checked on its way; the file is there whole or not at all."
)]
pub(crate) struct PullArgs {
    /// Where it is: an image, or a pointer to one
    pub(super) url: String,
    /// The file, or a directory
    pub(super) file: PathBuf,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct LsArgs {
    /// The folder
    pub(super) url: String,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Say which chunks, pages and bytes differ between two images, and which roots that touches
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit codes: 0 the same · 1 they differ · 2 and above: it could not be found out"
)]
pub(crate) struct DiffArgs {
    /// An image
    pub(super) first: PathBuf,
    /// Another
    pub(super) second: PathBuf,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Make one complete image of an image and those it needs, which are checked while they are read
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip image merge friday -o week --compress zstd:9\n  \
    cowslip image merge friday -o friday    # then it needs no other\n\nThe output is the same \
    image, of the same instant: it may take the place of the one that was merged.")]
pub(crate) struct MergeArgs {
    /// The last image of the chain
    pub(super) file: PathBuf,
    /// Where the complete image goes, whole or not at all
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: PathBuf,
    /// How its chunks are compressed: none, lz4, zstd or zstd:LEVEL (1 to 22)
    #[arg(long, value_name = "HOW", default_value_t = Compression::None)]
    pub(super) compress: Compression,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ImageArgs {
    /// The image: a file or a URL
    pub(super) file: PathBuf,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}
