//! The options of `cowslip restore`.

use std::path::PathBuf;

use cowslip::units::ByteCount;

use crate::commands::numbers::whole;

/// Restore an image into a process of its own, to look at it, or a process that `cowslip checkpoint` kept
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip restore store.image\n  \
    cowslip restore store.image --dump 0:4K | xxd\n  \
    cowslip restore store.image --via /run/cowslip-serve.socket\n  \
    cowslip restore shop.checkpoint\n  \
    cowslip restore secret.checkpoint --identity shop.key\n  \
    cowslip restore s3://bucket/shop.checkpoint\n\nAn image's memory can be read, not written. It stays until Ctrl-C. A process has \
    its number again, and runs before its memory is there, unless --eager is given.")]
pub(crate) struct Args {
    /// The image, a file or a URL, or a checkpoint, a folder or a URL
    pub(super) image: PathBuf,
    /// Which of the image's arenas
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole(0..=u32::MAX))]
    pub(super) arena: u32,
    /// Use the memory of the `cowslip serve` that listens at this Unix socket
    #[arg(long, value_name = "SOCKET", conflicts_with = "record")]
    pub(super) via: Option<PathBuf>,
    /// Write these bytes, from the arena's start, to stdout, and end
    #[arg(long, value_name = "OFFSET:LENGTH", value_parser = span)]
    pub(super) dump: Option<Span>,
    /// Remember beside the image which chunks the dump read: later restores bring them in first
    #[arg(long, requires = "dump")]
    pub(super) record: bool,
    /// Let a process run only once all its memory is there
    #[arg(long)]
    pub(super) eager: bool,
    /// Look here too for the checkpoints that a process' was based on, where they were moved
    #[arg(long, value_name = "FOLDER")]
    pub(super) base: Vec<PathBuf>,
    /// Open an encrypted checkpoint by the identities of age in this file
    #[arg(long, value_name = "FILE", visible_alias = "key-file")]
    pub(super) identity: Option<PathBuf>,
    /// The criu program, for a process
    #[arg(long, value_name = "PROGRAM", default_value = "criu")]
    pub(super) criu: PathBuf,
    /// Write its place as JSON to a file, or `-` for stdout, once it is there
    #[arg(long, value_name = "FILE", conflicts_with = "dump")]
    pub(super) json: Option<PathBuf>,
}

/// A part of an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) offset_bytes: u64,
    pub(super) length_bytes: u64,
}

fn span(text: &str) -> Result<Span, String> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => ByteCount::parse(text).map(|count| count.0),
    };
    let span = text.split_once(':').and_then(|(offset, length)| {
        Some(Span { offset_bytes: number(offset)?, length_bytes: number(length)? })
    });
    span.ok_or("an offset and a length such as 0x200000:4K are wanted".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_offsets_and_lengths() {
        let wanted = Span { offset_bytes: 0x20_0000, length_bytes: 4096 };
        assert_eq!(span("0x200000:4K"), Ok(wanted));
        assert_eq!(span("2M:4096"), Ok(wanted));
        assert!(span("2M").is_err() && span("0xg:1").is_err() && span(":").is_err());
    }
}
