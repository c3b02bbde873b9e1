//! The `cowslip-criu` command.

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::{Args, Parser};
use cowslip::image::{Compression, OnDamage, RestoreOptions};
use cowslip::{Error, Result};
use cowslip_criu::{ImportOptions, Memory, Served, Server, import, run_served};
use cowslip_sys::exit_code;
use cowslip_sys::out_of_memory::CommandAllocator;
use signal_hook::consts::{SIGINT, SIGTERM};

#[global_allocator]
static ALLOCATOR: CommandAllocator = CommandAllocator("cowslip-criu");

const EXIT_CODES: &str = "Exit codes: 0 ok · 1 it ran and the answer is no · 2 usage · 3 the kernel \
lacks it · 4 not permitted · 6 bad or corrupt file · 70 it failed: out of memory, busy; of a command that is run: its own, 128+N if signal \
N killed it";

/// Keep the memory of CRIU's dumps in Cowslip images, and serve it to criu lazy-pages
#[derive(Parser, Debug)]
#[command(name = "cowslip-criu", version, max_term_width = 100, after_help = EXIT_CODES)]
enum Cli {
    Import(ImportArgs),
    Serve(ServeArgs),
}

/// Write a dump's memory to an image
#[derive(Args, Debug)]
struct ImportArgs {
    /// The folder that `criu dump --images-dir` wrote
    dump: PathBuf,
    /// The image to write
    image: PathBuf,
    /// Make this folder, with all of the dump that the image does not have
    #[arg(long, value_name = "FOLDER")]
    rest: Option<PathBuf>,
    /// none, lz4, zstd or zstd:LEVEL
    #[arg(long, default_value_t)]
    compression: Compression,
}

/// Serve an image to criu lazy-pages
///
/// With a COMMAND, which is `criu lazy-pages` and its options, over a private socket; `--page-server --ps-socket 0` are
/// added to it. Without one, at a port: then any process that can connect to it can read the memory.
#[derive(Args, Debug)]
struct ServeArgs {
    /// The image that `cowslip-criu import` wrote
    image: PathBuf,
    /// Record the first touches of the restored process for the next time, until the first session ends
    #[arg(long)]
    record: bool,
    /// Where to listen, if there is no COMMAND; port 0 is any
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// `criu lazy-pages` and its options
    #[arg(last = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let done = match Cli::parse() {
        Cli::Import(args) => import_dump(&args),
        Cli::Serve(args) => serve_image(&args),
    };
    done.unwrap_or_else(|error| {
        tell(&error.to_string());
        ExitCode::from(exit_code::from_error(&error))
    })
}

/// Prints a message. A failure to print it cannot be reported.
fn tell(message: &str) {
    let _ = writeln!(io::stderr(), "cowslip-criu: {message}");
}

fn import_dump(args: &ImportArgs) -> Result<ExitCode> {
    let options = ImportOptions { compression: args.compression, rest: args.rest.clone() };
    let done = import(&args.dump, &args.image, &options, &mut |_| ControlFlow::Continue(()))?;
    tell(&format!(
        "{}: {} of {} processes in {} bytes, {:.3} s",
        args.image.display(),
        done.memory,
        done.processes,
        done.saved.file_bytes,
        done.saved.took.as_secs_f64()
    ));
    Ok(ExitCode::SUCCESS)
}

fn serve_image(args: &ServeArgs) -> Result<ExitCode> {
    let on_damage = OnDamage::new(|error, _| tell(&error.to_string()));
    let options =
        RestoreOptions { record: args.record, on_damage: Some(on_damage), ..Default::default() };
    let memory = Memory::restore(&args.image, &options)?;
    let (stopped, stop) = io::pipe().map_err(|error| Error::from_io("make a pipe", &error))?;
    // A server that ends takes memory from a process that runs already, so signals wait for the sessions.
    for signal in [SIGINT, SIGTERM] {
        let wake = stop.try_clone();
        wake.and_then(|wake| signal_hook::low_level::pipe::register(signal, wake))
            .map_err(|error| Error::from_io("listen to signals", &error))?;
    }
    if !args.command.is_empty() {
        return serve_command(&memory, &args.command);
    }
    let failed = |error| Error::from_io(format_args!("listen at {}", args.listen), &error);
    let server = Server::bind(&args.listen).map_err(failed)?;
    let address = server.address().map_err(failed)?;
    let printed = writeln!(io::stdout(), "{address}");
    printed.map_err(|error| Error::from_io("print the address", &error))?;
    let ended = |served| session_ended(&memory, served);
    let ran = server.run(&memory, stopped.as_fd(), &tell, &ended);
    ran.map_err(failed).map(|()| ExitCode::SUCCESS)
}

/// Runs a command with a socket as its standard input, and serves that socket.
fn serve_command(memory: &Memory, words: &[OsString]) -> Result<ExitCode> {
    let mut command = Command::new(&words[0]);
    // Ctrl-C must not end it before the memory is there.
    command.args(&words[1..]).process_group(0);
    match run_served(memory, &mut command, &tell, |_| ()) {
        Ok(((), status, served)) => {
            session_ended(memory, served);
            let code = status.code().or(status.signal().map(|signal| 128 + signal));
            Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(125)))
        }
        Err(error) => {
            tell(&format!("run {}: {error}", words[0].display()));
            Ok(ExitCode::from(match error.kind() {
                io::ErrorKind::NotFound => 127,
                io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => 125,
                _ => 126,
            }))
        }
    }
}

fn session_ended(memory: &Memory, served: Served) {
    if let Err(error) = memory.finish_recording() {
        tell(&error.to_string());
    }
    tell(&format!(
        "{} pages in {} answers, {:.3} s",
        served.pages,
        served.requests,
        served.took.as_secs_f64()
    ));
}
