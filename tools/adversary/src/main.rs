//! Random programs against `cowslip run`: the same program natively and under it, compared with a model of
//! the correct results.

mod drive;
mod generate;
mod hang;
mod heap;
mod late;
mod model;
mod perform;
mod program;
mod run;
mod shared;
mod shrink;
mod sys;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static HEAP: heap::Own = heap::Own;

#[derive(Parser)]
#[command(about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the programs of many seeds; ends at the first failure
    Run(drive::Options),
    /// Runs a seed's program, or a file's, and prints it
    Replay {
        /// A seed, or a file with a program
        what: String,
        /// Number of runs
        #[arg(long, default_value_t = 1)]
        times: u64,
        #[command(flatten)]
        options: drive::Options,
    },
    /// A program, in its own processes
    #[command(hide = true)]
    Perform {
        folder: PathBuf,
        #[arg(long)]
        causal: bool,
    },
    /// The program that programs start
    #[command(hide = true)]
    Leaf,
    /// Stops a program's threads, and reads its memory
    #[command(hide = true)]
    Stopper { pid: i32, at: usize, len: usize },
}

fn main() -> ExitCode {
    let ended = match Arguments::parse().command {
        Command::Run(options) => drive::run(&options),
        Command::Replay { what, times, options } => drive::replay(&what, times, &options),
        Command::Perform { folder, causal } => perform::perform(&folder, causal),
        Command::Stopper { pid, at, len } => return perform::stopper(pid, at, len).into(),
        Command::Leaf => return if perform::leaf() { 0.into() } else { 1.into() },
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("adversary: {error}");
            ExitCode::from(2)
        }
    }
}
