//! A key-value store that lives on images: it speaks Redis' protocol, has its whole heap in an arena, is saved while it
//! serves, and continues from the last completed image after any end.
//!
//! ```text
//! cargo run --release --example resp_store -- --image store.cowslip --every 1s
//! redis-cli -p 6380 set greeting hello
//! ```
//! `docs/guides/store.md` explains how it works and its guarantees for clients.

mod checkpoints;
mod commands;
mod heap;
mod images;
mod memory;
mod resp;
mod server;
mod store;
mod table;

use std::fmt;
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};
use std::{io, panic, thread};

use clap::Parser;
use cowslip::ErrorKind;
use cowslip::image::{OnDamage, RestoreOptions, Restored};
use cowslip::units::ByteCount;

use checkpoints::Checkpoints;
use images::{Found, Images};
use memory::Memory;
use store::Server;
use table::Table;

/// A key-value store that lives on images
#[derive(Parser)]
#[command(
    after_help = "Exit codes: 0 ok · 1 failed · 2 usage · 4 not permitted · 6 bad or corrupt image"
)]
struct Args {
    /// The newest image; older ones that it needs are FILE.<number>
    #[arg(long, value_name = "FILE")]
    image: PathBuf,
    /// Time between checkpoints, such as 1s or 250ms; 0s: only by SAVE and BGSAVE
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    every: Duration,
    /// Loopback port; 0: any that is free
    #[arg(long, default_value_t = 6380)]
    port: u16,
    /// Listen on a Unix socket too
    #[arg(long, value_name = "FILE")]
    unix: Option<PathBuf>,
    /// The most memory that a new store may take; one that is restored keeps its own
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1G")]
    capacity: ByteCount,
    /// Images in a chain before a complete one is saved
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=500))]
    chain: u16,
    /// Have the memory know what changes between checkpoints, so that they read no more than that
    #[arg(long)]
    track: bool,
}

/// The reason why the store cannot start, or a checkpoint cannot be taken.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
    /// A disk, or memory, is full.
    is_for_lack_of_room: bool,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    fn new(code: u8, message: String) -> Self {
        Self { code, message, is_for_lack_of_room: false }
    }

    fn io(path: &Path, error: &io::Error) -> Self {
        let code = if error.kind() == io::ErrorKind::PermissionDenied { 4 } else { 1 };
        Self::new(code, format!("{}: {error}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<cowslip::Error> for Failure {
    fn from(error: cowslip::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Usage => 2,
            ErrorKind::Unsupported => 3,
            ErrorKind::Denied => 4,
            ErrorKind::Corrupt => 6,
            _ => 1,
        };
        let is_for_lack_of_room = error.kind() == ErrorKind::OutOfMemory;
        Self { code, message: error.to_string(), is_for_lack_of_room }
    }
}

fn main() -> ExitCode {
    let started = Instant::now();
    // A command interrupted by a panic must not get into a checkpoint.
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        process::abort();
    }));
    let Err(failure) = run(&Args::parse(), started) else { return ExitCode::SUCCESS };
    eprintln!("resp_store: {failure}");
    ExitCode::from(failure.code)
}

fn run(args: &Args, started: Instant) -> Result<()> {
    if args.image.file_name().is_none() || args.image.is_dir() {
        return Err(Failure::new(2, format!("{}: a file is wanted", args.image.display())));
    }
    // First: early clients wait, and nothing has been touched if the port is taken.
    let tcp = TcpListener::bind(("127.0.0.1", args.port))
        .map_err(|error| Failure::io(Path::new(&format!("port {}", args.port)), &error))?;
    let unix = args.unix.as_deref().map(listen).transpose()?;
    let (images, found) = Images::open(&args.image, args.chain.into())?;
    let mark = found.as_ref().map(|found| found.mark);
    let restored = found.as_ref().map(|found| restore(found, started)).transpose()?;
    let table = match (&found, &restored) {
        (Some(found), Some(restored)) => {
            Table::from_memory(Memory::from_arena(restored.arena().clone(), &found.root))
        }
        _ => Table::new(Memory::new(args.capacity)?)
            .map_err(|_| Failure::new(2, format!("--capacity {} is too little", args.capacity)))?,
    };
    if args.track && !table.memory().arena().track_changes(true) {
        println!("changes cannot be tracked here: checkpoints read all of the memory");
    }
    let server: &'static Server = Box::leak(Box::new(Server {
        table: Mutex::new(table),
        checkpoints: Checkpoints::new(args.every, mark),
        every: args.every,
        restored: mark,
        started,
        first: Once::new(),
    }));
    thread::spawn(move || server.checkpoints.run(&server.table, images, restored));
    if let Some(listener) = unix {
        thread::spawn(move || server.accept(listener.incoming()));
    }
    let address = tcp.local_addr().map_err(|error| Failure::io(Path::new("a socket"), &error))?;
    println!("ready on {address}");
    server.accept(tcp.incoming().inspect(|stream| {
        // Replies are sent whole: there is nothing to wait for.
        let _ = stream.as_ref().map(|stream| stream.set_nodelay(true));
    }));
    Ok(())
}

fn restore(found: &Found, started: Instant) -> Result<Restored> {
    let Found { image, mark, .. } = found;
    println!("restoring generation {} ({} writes)", mark.generation, mark.writes);
    let file = image.path().to_owned();
    let on_damage = OnDamage::new(move |error, _| {
        // Without its content the store would serve wrong data.
        eprintln!("resp_store: {} is damaged: {error}", file.display());
        process::exit(6);
    });
    let options = RestoreOptions { on_damage: Some(on_damage), ..RestoreOptions::default() };
    let restored = image.restore(0, &options, &mut |_| ControlFlow::Continue(()))?;
    println!("usable {:?} after the start ({})", started.elapsed(), restored.strategy());
    Ok(restored)
}

/// Listens on a Unix socket, replacing one without a listener.
fn listen(path: &Path) -> Result<UnixListener> {
    let of_path = |error: io::Error| Failure::io(path, &error);
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            match std::os::unix::net::UnixStream::connect(path) {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {}
                _ => return Err(of_path(error)),
            }
            std::fs::remove_file(path).map_err(of_path)?;
            UnixListener::bind(path).map_err(of_path)
        }
        bound => bound.map_err(of_path),
    }
}

fn size(text: &str) -> std::result::Result<ByteCount, String> {
    let size = ByteCount::parse(text).filter(|size| size.0 > 0);
    size.ok_or_else(|| "a size such as 512M or 8GiB is wanted".into())
}

fn duration(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: Option<u32> = digits.parse().ok();
    match (number, &text[digits.len()..]) {
        (Some(ms), "ms") => Ok(Duration::from_millis(ms.into())),
        (Some(s), "s") => Ok(Duration::from_secs(s.into())),
        (Some(minutes), "m") => Ok(Duration::from_secs(60 * u64::from(minutes))),
        _ => Err("a time such as 1s or 250ms is wanted".into()),
    }
}
