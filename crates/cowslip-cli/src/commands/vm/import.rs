//! `cowslip vm import`: an image of a file of RAM, as monitors write it.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use cowslip::Arena;
use cowslip::image::{Compression, SaveOptions};
use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes};
use cowslip_vm::firecracker::RAM;

use super::{room, write_image};
use crate::exit::{self, CommandResult, FAILED, Failure, USAGE};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  cowslip vm import mem_file -o guest.cowslip --compression zstd\n  \
    cowslip serve guest.cowslip --firecracker /run/vm/pages.socket"
)]
pub(crate) struct Args {
    /// The file, as long as the RAM: Firecracker's `mem_file_path`
    file: PathBuf,
    /// The image to write
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,
    /// none, lz4, zstd or zstd:LEVEL
    #[arg(long, default_value_t)]
    compression: Compression,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let failed = || exit::io(format!("read {}", args.file.display()));
    let mut file = File::open(&args.file).map_err(failed())?;
    let bytes = file.metadata().map_err(failed())?.len() as usize;
    if bytes == 0 || !bytes.is_multiple_of(page_size_bytes()) {
        let why = format!("{} has {bytes} bytes, not whole pages", args.file.display());
        return Err(Failure::new(USAGE, why));
    }
    let arena = Arena::new(ByteCount(room(bytes)))?;
    let mut ram = arena.slice::<u8>(bytes)?;
    let mut piece = vec![0; CHUNK_BYTES];
    for place in ram.chunks_mut(CHUNK_BYTES) {
        let piece = &mut piece[..place.len()];
        file.read_exact(piece).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                Failure::new(FAILED, format!("{} became shorter", args.file.display()))
            }
            _ => failed()(error),
        })?;
        // Memory is taken for content alone.
        if piece.iter().any(|byte| *byte != 0) {
            place.copy_from_slice(piece);
        }
    }
    let options = SaveOptions {
        compression: args.compression,
        roots: [(RAM.to_owned(), ram.root(0))].into(),
        ..SaveOptions::default()
    };
    let saved = write_image(&arena, &args.output, &options)?;
    let (ram, image) = (ByteCount(bytes as u64), ByteCount(saved.file_bytes));
    outln!("{}: {ram} of RAM in {image}", args.output.display());
    Ok(ExitCode::SUCCESS)
}
