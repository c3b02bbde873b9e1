//! A small virtual machine monitor: boots a machine once, and makes a hundred of it, each with an identity and a clock
//! of its own.
//!
//! ```sh
//! cargo run --release -p cowslip-vm --example vmm -- --kernel vmlinuz --initrd initramfs.gz
//! ```
//!
//! The file `init` beside this one is what runs in the machine: the monitor waits for its line `cowslip: ready` on the
//! serial console, and then for an answer of each clone. Without `--kernel` a guest of the monitor's own does the same,
//! for a KVM that cannot boot a Linux.

mod monitor;

use std::path::PathBuf;

use clap::Parser;
use monitor::{Guest, Host, Options, Result, demonstrate};

#[derive(Parser)]
struct Arguments {
    /// A Linux, as bzImage or ELF [default: a guest of the monitor's own]
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Its initial RAM disk
    #[arg(long, requires = "kernel")]
    initrd: Option<PathBuf>,
    /// More words for its command line
    #[arg(long, requires = "kernel", default_value = "")]
    cmdline: String,
    /// A disk that all machines read
    #[arg(long)]
    disk: Option<PathBuf>,
    /// RAM in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(32..=3072))]
    memory: u64,
    #[arg(long, default_value_t = 100)]
    clones: usize,
    /// Show the console of the machine that boots
    #[arg(long)]
    console: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (initrd, words) = (arguments.initrd, arguments.cmdline);
    let guest =
        arguments.kernel.map_or(Guest::Tiny, |kernel| Guest::Linux { kernel, initrd, words });
    let options = Options {
        guest,
        disk: arguments.disk,
        memory_bytes: arguments.memory << 20,
        clones: arguments.clones,
        console: arguments.console,
    };
    let report = demonstrate(&Host::open()?, &options)?;
    print!("{report}");
    if report.is_right() { Ok(()) } else { Err("clones are not right".into()) }
}
