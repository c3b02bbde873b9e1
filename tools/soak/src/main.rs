//! A soak of images in object stores: a program that saves every second, others that restore its images, a
//! store with all kinds of faults on the way, and `kill -9` (CONTRIBUTING.md).

mod check;
mod driver;
mod faults;
mod judge;
mod memory;
mod pattern;
mod processes;
mod reader;
mod say;
mod store;
mod writer;

#[allow(dead_code, unreachable_pub)]
#[path = "../../../crates/cowslip-remote/tests/support/files.rs"]
mod files;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../crates/cowslip-remote/tests/support/proxy.rs"]
mod proxy;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../crates/cowslip-remote/tests/support/server.rs"]
mod server;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about)]
struct Arguments {
    /// Seconds to run
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Determines all writes, reads, faults and kills, as far as the machine's own pace allows
    #[arg(long)]
    seed: Option<u64>,
    /// Folder for a new folder with the files of the store and the nodes, removed at the end
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The processes of the soak.
#[derive(Subcommand)]
enum Part {
    /// The store
    #[command(hide = true)]
    Store { root: PathBuf },
    /// The process that saves
    #[command(hide = true)]
    Writer { store: SocketAddr, seed: u64, number: u32 },
    /// A process that restores, on a node of its own
    #[command(hide = true)]
    Reader { store: SocketAddr, seed: u64, number: u32, folder: PathBuf },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match arguments.part {
        None => {
            let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
            return match driver::run(arguments.seconds, seed, &arguments.folder) {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::FAILURE,
                Err(error) => {
                    eprintln!("soak: {error}");
                    ExitCode::from(2)
                }
            };
        }
        Some(Part::Store { root }) => store::serve(root),
        Some(Part::Writer { store, seed, number }) => {
            say::end_with_parent();
            server::environment(store);
            writer::run(seed, number)
        }
        Some(Part::Reader { store, seed, number, folder }) => {
            say::end_with_parent();
            server::environment(store);
            reader::run(seed, number, &folder)
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::refused("all", &error);
            ExitCode::FAILURE
        }
    }
}
