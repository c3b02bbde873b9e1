//! `cowslip vm`: machines of QEMU, kept and copied while they run.

mod copies;
mod disks;
mod guard;
mod import;
mod instant;
mod machine;
mod qmp;
mod ram;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cowslip::image::{Compression, Image, Progress as Done, Root, SaveOptions, Saved, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, ArenaSlice, Error, ErrorKind, Result};
use cowslip_report::{Progress, json};
use cowslip_vm::firecracker::RAM;
use serde_json::json;

use self::copies::{Copies, ms, ram_file, write_ram};
use self::instant::{MOST_BYTES, Taken, in_overlays};
use self::machine::Machine;
use super::numbers::whole;
use super::signals;
use crate::exit::{self, CommandResult, Failure, USAGE};

const EXAMPLES: &str = "Examples:
  cowslip run --guest-memory -- qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=ram,size=1G \
-machine q35,memory-backend=ram -qmp unix:shop.qmp,server=on,wait=off …
  cowslip vm snapshot shop.qmp -o shop.cowslip
  cowslip vm restore shop.cowslip -o copy
  cowslip vm branch shop.qmp -n 8 -o copies

The machine goes on after some milliseconds. It needs the right to trace QEMU's process. A machine that writes to disks \
is branched with --disks alone.";

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Action {
    /// Keep a running machine in an image
    #[command(after_help = EXAMPLES)]
    Snapshot(SnapshotArgs),
    /// Start a machine of an image
    #[command(after_help = EXAMPLES)]
    Restore(RestoreArgs),
    /// Start copies of a running machine
    #[command(after_help = EXAMPLES)]
    Branch(BranchArgs),
    /// Make an image of a file of RAM, for `cowslip serve --firecracker`
    Import(import::Args),
    #[command(name = guard::NAME, hide = true)]
    Guard(guard::Args),
}

#[derive(clap::Args, Debug)]
pub(crate) struct SnapshotArgs {
    /// The machine's QMP
    socket: PathBuf,
    /// The image to write
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,
    /// none, lz4, zstd or zstd:LEVEL
    #[arg(long, default_value_t)]
    compression: Compression,
    /// Write the result as JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct RestoreArgs {
    /// The image
    image: PathBuf,
    #[command(flatten)]
    copies: CopyArgs,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BranchArgs {
    /// The machine's QMP
    socket: PathBuf,
    /// Number of copies
    #[arg(short = 'n', default_value_t = 1, value_parser = whole(1..=1024u32))]
    count: u32,
    /// The folder to make for the disks that the machine writes to: it goes on in overlays there, and each copy in
    /// overlays of its own. The files that it wrote to before are written no more
    #[arg(long, value_name = "FOLDER")]
    disks: Option<PathBuf>,
    #[command(flatten)]
    copies: CopyArgs,
}

#[derive(clap::Args, Debug)]
pub(crate) struct CopyArgs {
    /// The folder to make, with a folder for each copy: its QMP `qmp`, its first console `serial0`, its `log`
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Write the copies as JSON to a file, or `-` for stdout, once they run
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The copies' command line, with %i for the number of each [default: the machine's]
    #[arg(last = true)]
    command: Vec<String>,
}

/// The schema of results as JSON.
const SCHEMA: &str = "cowslip.vm/1";
const DEVICES: &str = "vm.devices";
const MACHINE: &str = "vm.machine";

pub(super) fn run(action: &Action) -> CommandResult {
    match action {
        Action::Snapshot(args) => snapshot(args),
        Action::Restore(args) => restore(args),
        Action::Branch(args) => branch(args),
        Action::Import(args) => import::run(args),
        Action::Guard(args) => guard::run(args),
    }
}

fn snapshot(args: &SnapshotArgs) -> CommandResult {
    let taken = Taken::take(&args.socket, None)?;
    let ram_bytes = taken.machine.ram_bytes as usize;
    let arena = Arena::new(ByteCount(room(ram_bytes) + room(taken.devices.len())))?;
    let mut ram = arena.slice::<u8>(ram_bytes)?;
    let mut devices = arena.slice::<u8>(taken.devices.len())?;
    devices.copy_from_slice(&taken.devices);
    taken.ram.read(|piece, at| {
        if piece.iter().any(|byte| *byte != 0) {
            ram[at as usize..][..piece.len()].copy_from_slice(piece);
        }
        Ok(())
    })?;
    let (machine, pause) = (taken.machine.clone(), taken.pause);
    // From here on the machine's memory thaws.
    drop(taken);
    let root = |name: &str, slice: &ArenaSlice<u8>| (name.to_owned(), slice.root(0));
    let words = serde_json::to_string(&machine).map_err(|error| exit::io("write")(error.into()))?;
    let options = SaveOptions {
        compression: args.compression,
        roots: [root(RAM, &ram), root(DEVICES, &devices)].into(),
        user: [(MACHINE.to_owned(), words)].into(),
        ..SaveOptions::default()
    };
    let saved = write_image(&arena, &args.output, &options)?;
    if let Some(file) = &args.json {
        let result = json!({
            "schema": SCHEMA,
            "command": "snapshot",
            "image": args.output,
            "ram_bytes": machine.ram_bytes,
            "image_bytes": saved.file_bytes,
            "pause_ns": pause.as_nanos() as u64,
        });
        json::write(&result, file).map_err(exit::io("write the result"))?;
    } else {
        outln!(
            "{}: {} of RAM in {}; the machine stood still for {}",
            args.output.display(),
            ByteCount(machine.ram_bytes),
            ByteCount(saved.file_bytes),
            ms(pause)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Whole chunks with room for so many bytes.
fn room(bytes: usize) -> u64 {
    bytes.next_multiple_of(CHUNK_BYTES) as u64
}

/// Writes an image, until Ctrl-C.
fn write_image(arena: &Arena, path: &Path, options: &SaveOptions) -> Result<Saved, Failure> {
    let stop = signals::interrupt().map_err(exit::system("listen for Ctrl-C"))?;
    let mut progress = Progress::new();
    progress.phase(&format!("writing {}", path.display()));
    let mut advanced = |done: Done| {
        progress.set(done.done_bytes >> 20, done.total_bytes >> 20);
        if stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let saved = save(&[&arena.freeze()?], path, options, &mut advanced)?;
    progress.finish();
    Ok(saved)
}

/// Reads a place of an image, chunk by chunk: `take` gets each part that has content.
fn read_root(
    image: &Image,
    root: &Root,
    mut take: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let mut content = vec![0; CHUNK_BYTES];
    let (start, end) = (root.offset_bytes, root.offset_bytes + root.length_bytes);
    for chunk in image.used_chunks(root.arena) {
        let at = u64::from(chunk) * CHUNK_BYTES as u64;
        let (from, to) = (start.max(at), end.min(at + CHUNK_BYTES as u64));
        if from < to {
            image.read_chunk(root.arena, chunk, &mut content)?;
            take(&content[(from - at) as usize..(to - at) as usize], from - start)?;
        }
    }
    Ok(())
}

fn restore(args: &RestoreArgs) -> CommandResult {
    let began = Instant::now();
    let image = Image::open(&args.image)?;
    let (machine, ram, devices) = parts(&image, &args.image)?;
    let file = ram_file(machine.ram_bytes)?;
    read_root(&image, ram, |piece, at| write_ram(&file, piece, at))?;
    let mut state = Vec::new();
    read_root(&image, devices, |piece, at| {
        state.resize(at as usize, 0);
        state.extend_from_slice(piece);
        Ok(())
    })?;
    let machine = with_command(machine, &args.copies)?;
    let mut copies = Copies::start(&machine, 1, (&file, None), &state, &args.copies.output)?;
    copies.go_on()?;
    drop(file);
    let ready = began.elapsed();
    if let Some(file) = &args.copies.json {
        write_copies(file, "restore", &machine, None, ready, &copies)?;
    } else {
        outln!("the machine runs after {}", ms(ready));
        copies.print();
    }
    copies.wait()
}

/// The parts of an image of a machine.
fn parts<'a>(image: &'a Image, path: &Path) -> Result<(Machine, &'a Root, &'a Root)> {
    let described = image.description();
    let machine = described.user.get(MACHINE).and_then(|text| serde_json::from_str(text).ok());
    let roots = (described.roots.get(RAM), described.roots.get(DEVICES));
    match (machine, roots) {
        // An image from elsewhere may say any length.
        (Some(machine), (Some(ram), Some(devices)))
            if is_whole(&machine, ram) && devices.length_bytes <= MOST_BYTES =>
        {
            Ok((machine, ram, devices))
        }
        _ => Err(Error::new(ErrorKind::Corrupt, "restore a machine")
            .of_file(path)
            .because("it is no image of a machine")
            .advise("make one with `cowslip vm snapshot`")),
    }
}

fn is_whole(machine: &Machine, ram: &Root) -> bool {
    ram.length_bytes == machine.ram_bytes && !machine.arguments.is_empty()
}

fn with_command(mut machine: Machine, args: &CopyArgs) -> Result<Machine, Failure> {
    if !args.command.is_empty() {
        machine.arguments.clone_from(&args.command);
        let folder = std::env::current_dir().map_err(exit::io("find the current folder"))?;
        machine.folder = folder.to_string_lossy().into_owned();
    }
    Ok(machine)
}

fn branch(args: &BranchArgs) -> CommandResult {
    let output = &args.copies.output;
    if output.symlink_metadata().is_ok() {
        let why = format!("{} is there already: name a new folder", output.display());
        return Err(Failure::new(USAGE, why));
    }
    let taken = Taken::take(&args.socket, args.disks.as_deref())?;
    let disks = taken.machine.disks.clone();
    copy(args, taken).map_err(|failure| match &args.disks {
        Some(overlays) => in_overlays(failure, &disks, overlays),
        None => failure,
    })
}

fn copy(args: &BranchArgs, taken: Taken) -> CommandResult {
    let began = Instant::now();
    let file = ram_file(taken.machine.ram_bytes)?;
    let loan = taken.lend();
    let write = |piece: &[u8], at| write_ram(&file, piece, at);
    match &loan {
        Some(loan) => taken.ram.read_parts(loan.own_parts(), write)?,
        None => taken.ram.read(write)?,
    }
    let (machine, devices, pause) = (taken.machine.clone(), taken.devices.clone(), taken.pause);
    let machine = with_command(machine, &args.copies)?;
    let ram = (&file, loan.as_ref());
    let mut copies = Copies::start(&machine, args.count, ram, &devices, &args.copies.output)?;
    // From here on the machine's memory thaws that no copy reads.
    drop(taken);
    copies.go_on()?;
    drop(file);
    let ready = began.elapsed();
    if let Some(file) = &args.copies.json {
        write_copies(file, "branch", &machine, Some(pause), ready, &copies)?;
    } else {
        let (pause, after) = (ms(pause), ms(ready));
        outln!("the machine stood still for {pause}; {} copies run after {after}", args.count);
        if let Some(disks) = args.disks.as_ref().filter(|_| !machine.disks.is_empty()) {
            outln!("the machine goes on with overlays of its disks in {}", disks.display());
        }
        copies.print();
    }
    copies.wait()
}

fn write_copies(
    file: &Path,
    command: &str,
    machine: &Machine,
    pause: Option<Duration>,
    ready: Duration,
    copies: &Copies,
) -> Result<(), Failure> {
    let result = json!({
        "schema": SCHEMA,
        "command": command,
        "ram_bytes": machine.ram_bytes,
        "pause_ns": pause.map(|pause| pause.as_nanos() as u64),
        "ready_ns": ready.as_nanos() as u64,
        "copies": copies.to_json(),
    });
    json::write(&result, file).map_err(exit::io("write the result"))
}
