//! `cowslip restore`: an image in a process of its own, for inspection, or a process from its checkpoint.
//!
//! # Safety
//! The memory was restored by this process, and no code here has a reference into it.

#![allow(unsafe_code)]

mod args;
mod process;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use cowslip::Prot;
use cowslip::image::{
    ArenaDescription, Image, OnDamage, Progress as Done, RestoreOptions, Restored, Via,
};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip_report::{Progress, json};
use serde_json::{Value, json};

use super::signals;
use super::stored::Stored;
use crate::exit::{self, CommandResult, Failure};
use crate::remote;
pub(super) use args::Args;
use args::Span;

/// The interval between checks for the end.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn run(args: &Args) -> CommandResult {
    let is_of_image = args.dump.is_some() || args.via.is_some() || args.arena != 0;
    if args.image.is_dir() && !is_of_image {
        return process::run(args);
    }
    if !is_of_image && let Some(stored) = Stored::open(&args.image)? {
        return process::run_stored(args, &stored);
    }
    if !args.base.is_empty() || args.identity.is_some() {
        let message = "--base and --identity are for checkpoints";
        return Err(Failure::new(exit::USAGE, message.to_owned()));
    }
    let image = remote::open(&args.image)?;
    let arenas = &image.description().arenas;
    let Some(described) = arenas.get(args.arena as usize) else {
        let message = format!("{} has {} arenas", args.image.display(), arenas.len());
        return Err(Failure::new(exit::USAGE, message));
    };
    let mut progress = Progress::new();
    progress.phase(&format!("restoring {}", args.image.display()));
    let mut advanced = |done: Done| {
        advance(&progress, done);
        ControlFlow::Continue(())
    };
    // Without this, touching damaged memory here would kill the process.
    let on_damage = OnDamage::new(|error, _| Failure::from(error.clone()).exit());
    let options = RestoreOptions {
        record: args.record,
        via: args.via.clone().map_or(Via::Environment, Via::Server),
        on_damage: Some(on_damage),
        ..RestoreOptions::default()
    };
    let restored = image.restore(args.arena, &options, &mut advanced)?;
    let start = restored.arena().range().start;
    let shown = Shown { args, image: &image, described, start };
    if let Some(span) = args.dump {
        progress.finish();
        return shown.dump(span, &restored);
    }
    // Until here a signal ends the process: it waits for a disk or a store, and there is nothing to clean up.
    let stop = signals::interrupt().map_err(exit::system("listen for Ctrl-C"))?;
    complete(&restored, &progress, &stop)?;
    progress.finish();
    if stop.load(Relaxed) {
        return Ok(ExitCode::SUCCESS);
    }
    shown.protect(&restored)?;
    shown.tell()?;
    while !stop.load(Relaxed) {
        thread::sleep(LOOK);
    }
    Ok(ExitCode::SUCCESS)
}

fn advance(progress: &Progress, done: Done) {
    progress.set(done.done_bytes >> 20, done.total_bytes >> 20);
}

/// Waits until all memory is present: a debugger could not make it come.
fn complete(restored: &Restored, progress: &Progress, stop: &AtomicBool) -> Result<(), Failure> {
    while !stop.load(Relaxed) && !restored.wait(LOOK)? {
        advance(progress, restored.progress());
    }
    Ok(())
}

/// The restored arena, and its place.
struct Shown<'a> {
    args: &'a Args,
    image: &'a Image,
    described: &'a ArenaDescription,
    /// The arena's first address now.
    start: usize,
}

impl Shown<'_> {
    /// The ranges that were handed out and can be read, each with its protection.
    fn readable(&self) -> impl Iterator<Item = (VirtRange, &str)> {
        let pieces = self.described.pieces.iter();
        let readable = pieces.filter(|piece| piece.protection.contains('r'));
        readable.map(|piece| {
            let start = self.start + piece.offset_bytes as usize;
            (VirtRange::new(start, piece.length_bytes as usize), piece.protection.as_str())
        })
    }

    fn dump(&self, span: Span, restored: &Restored) -> CommandResult {
        let wanted = (self.start as u64).checked_add(span.offset_bytes).and_then(|start| {
            start.checked_add(span.length_bytes).filter(|end| *end <= usize::MAX as u64)?;
            Some(VirtRange::new(start as usize, span.length_bytes as usize))
        });
        let inside = |wanted: &VirtRange| {
            let covered = self.readable().map(|(range, _)| range.intersect(*wanted).len);
            covered.sum::<usize>() == wanted.len
        };
        let Some(wanted) = wanted.filter(inside) else {
            let message = format!(
                "{:#x}:{:#x} is not all in use and readable: see `cowslip image info --json -`",
                span.offset_bytes, span.length_bytes
            );
            return Err(Failure::new(exit::USAGE, message));
        };
        // SAFETY: see the module; all of it is readable, and no code writes to it.
        let bytes = unsafe { std::slice::from_raw_parts(wanted.start as *const u8, wanted.len) };
        let mut stdout = io::stdout().lock();
        for part in bytes.chunks(CHUNK_BYTES) {
            match stdout.write_all(part).and_then(|()| stdout.flush()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                written => written.map_err(exit::io("write to standard output"))?,
            }
        }
        if self.args.record {
            let file = restored.finish_recording()?;
            errln!("recorded in {}", file.display());
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Makes the memory read-only, so that it cannot be written by mistake.
    fn protect(&self, restored: &Restored) -> Result<(), Failure> {
        for (range, protection) in self.readable().filter(|(_, prot)| prot.contains('w')) {
            let executable = if protection.contains('x') { Prot::EXEC } else { Prot::NONE };
            let prot = Prot::READ | executable;
            // SAFETY: see the module.
            unsafe { restored.arena().protect(range, prot) }?;
        }
        Ok(())
    }

    fn tell(&self) -> Result<(), Failure> {
        if let Some(file) = &self.args.json {
            return json::write(&self.to_json(), file).map_err(exit::io("write where it is"));
        }
        let pid = std::process::id();
        let length = ByteCount(self.described.length_bytes);
        outln!("{}", self.args.image.display());
        outln!("  {:<12} {pid}", "process");
        outln!("  {:<12} {length} at {:#x}", "arena", self.start);
        let mut look_at = self.readable().next().map_or(self.start, |(range, _)| range.start);
        for (name, range) in self.roots() {
            outln!(
                "  {:<12} {name}: {} at {:#x}",
                "root",
                ByteCount(range.len as u64),
                range.start
            );
            look_at = range.start;
        }
        outln!("Look at it, while it is here (Ctrl-C ends it):");
        outln!("  gdb --batch -p {pid} -ex 'x/8gx {look_at:#x}'");
        outln!("  xxd -s {look_at:#x} -l 64 /proc/{pid}/mem");
        io::stdout().flush().map_err(exit::io("write to standard output"))
    }

    fn roots(&self) -> impl Iterator<Item = (&str, VirtRange)> {
        let roots = self.image.description().roots.iter();
        let roots = roots.filter(|(_, root)| root.arena == self.args.arena);
        roots.map(|(name, root)| {
            let start = self.start + root.offset_bytes as usize;
            (name.as_str(), VirtRange::new(start, root.length_bytes as usize))
        })
    }

    fn to_json(&self) -> Value {
        let roots = self.roots().map(|(name, range)| {
            (name.to_owned(), json!({"start_address": range.start, "length_bytes": range.len}))
        });
        json!({
            "schema": "cowslip.restore/1",
            "pid": std::process::id(),
            "image": self.image.identity().to_string(),
            "start_address": self.start,
            "length_bytes": self.described.length_bytes,
            "roots": roots.collect::<serde_json::Map<_, _>>(),
        })
    }
}
