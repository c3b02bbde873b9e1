//! The options of `cowslip run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;
use cowslip::units::ByteCount;

use crate::commands::numbers::{any_byte_count, byte_count, whole};

/// Run a program with its large memory on huge pages and its fork() cheap
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "cowslip run [OPTIONS] [--] <PROGRAM>...",
    after_help = "Examples:\n  cowslip run -- redis-server --port 7777\n  \
    cowslip run --capacity 4G --log - -- ./my-store\n\nThe program takes the place of this \
    process, with its process id."
)]
pub(crate) struct Args {
    /// Address space for the program's memory [default: the machine's memory and swap]
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub(super) capacity: Option<ByteCount>,
    /// The memory's pages
    #[arg(long, value_enum, default_value_t = BackingArg::Thp)]
    pub(super) backing: BackingArg,
    /// Smallest anonymous mapping that goes into the arena
    #[arg(long, value_name = "SIZE", value_parser = byte_count, default_value = "32K")]
    pub(super) threshold: ByteCount,
    /// How much the program maps before it gets an arena: with less, its fork gains nothing
    #[arg(long, value_name = "SIZE", value_parser = any_byte_count, default_value = "4M",
        overrides_with = "arena_after")]
    pub(super) arena_after: ByteCount,
    /// The program's malloc: glibc's takes memory that cannot be put into an arena
    #[arg(long, value_enum, default_value_t = MallocArg::Bundled)]
    pub(super) malloc: MallocArg,
    /// Freeze without userfaultfd, even where it works: frozen memory stays frozen, and written pages exist twice
    #[arg(long)]
    pub(super) without_userfaultfd: bool,
    /// Pass prctl(PR_SET_THP_DISABLE) on instead of answering it
    #[arg(long)]
    pub(super) respect_thp_disable: bool,
    /// Have its children run while a processor has nothing else to do, and for PERCENT of one in any case, so that a
    /// saving child yields to the serving program
    #[arg(long, value_name = "PERCENT", value_parser = whole(1..=100u8))]
    pub(super) child_share: Option<u8>,
    /// End its youngest child that still reads the memory it was forked with when that causes more than SIZE of private
    /// copies
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub(super) child_memory: Option<ByteCount>,
    /// Help the programs that its children exec as well
    #[arg(long)]
    pub(super) follow_exec: bool,
    /// For QEMU with memory-backend-memfd: put the guest's RAM into the arena, for `cowslip vm`. No other process may map
    /// it: no vhost-user, no VFIO
    #[arg(long)]
    pub(super) guest_memory: bool,
    /// Refuse to run a program that cannot be helped, instead of running it as without Cowslip
    #[arg(long)]
    pub(super) strict: bool,
    /// Do not say that a program cannot be helped
    #[arg(long, short, conflicts_with = "strict")]
    pub(super) quiet: bool,
    /// Write the counters as JSON when the program calls exit (not if a signal ends it)
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Say what happens, to a file or `-` for stderr (also COWSLIP_LOG)
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    /// The name by which the program is called (`argv[0]`) [default: as it is written here]
    #[arg(long, value_name = "NAME")]
    pub(super) argv0: Option<OsString>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    pub(super) program: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MallocArg {
    /// The bundled one (jemalloc), unless the program or its user brings one, such as tcmalloc or mimalloc
    Bundled,
    /// The program's own
    Keep,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum BackingArg {
    /// Transparent huge pages, else base pages
    Thp,
    /// Base pages
    Base,
}
