//! The options of `cowslip status`.

use std::path::PathBuf;

use crate::commands::numbers::whole;

/// Ask a running program for its counters: arenas, freezes, thaws, private pages, longest stall
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  cowslip status                  # all programs with arenas\n  \
    cowslip status redis-server     # those of this name\n  \
    cowslip status 4711 --watch     # one, every second\n\n\
    Used is what the program has allocated in its arenas; held the memory that is behind it, in files and as copies. \
    Mapped is what its page tables show of that now, copies are its private pages, and left is what no longer is in an \
    arena. As JSON: used_bytes, held_bytes, resident_bytes, private_bytes, left_bytes of each arena."
)]
pub(crate) struct Args {
    /// Process id, or the name of programs [default: all programs that this user may look into]
    #[arg(value_name = "PID|NAME", value_parser = which)]
    pub(super) which: Option<Which>,
    /// Ask again at this interval, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", require_equals = true,
        value_parser = whole(1..=u64::MAX), conflicts_with = "json")]
    pub(super) watch: Option<u64>,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// One process, or all of a name.
#[derive(Clone, Debug)]
pub(super) enum Which {
    Pid(i32),
    Name(String),
}

fn which(text: &str) -> Result<Which, String> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => whole(1..=i32::MAX)(text).map(Which::Pid),
        false => Ok(Which::Name(text.to_owned())),
    }
}
