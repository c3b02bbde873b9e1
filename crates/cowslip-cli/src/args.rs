//! The one table of commands and options.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use cowslip::image::Compression;
use cowslip::units::ByteCount;

use crate::bench::{bloat, cow, fork, restore, trace};
use crate::commands::promote::args::PromoteArgs;
use crate::compare::args::{CompareArgs, RecordArgs};
use crate::numbers::whole;
use crate::restoring::StrategyArg;
use crate::trace::args::TraceArgs;

/// Snapshot, fork and restore big-memory Linux programs in microseconds, and keep the huge pages.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// [`Args`], of `run` only.
#[derive(Parser, Debug)]
#[command(max_term_width = 100)]
struct OfRun {
    #[command(subcommand)]
    command: Run,
}

#[derive(Subcommand, Debug)]
enum Run {
    Run(RunArgs),
}

impl Args {
    /// What this process was called with. It ends here if that is wrong, or only asks for help.
    ///
    /// The table of all commands takes longer to build than a program to start, so `run` does not wait for it.
    pub(crate) fn of_this_process() -> Self {
        if std::env::args_os().nth(1).is_some_and(|word| word == "run") {
            let Run::Run(args) = OfRun::parse().command;
            return Self { command: Command::Run(args) };
        }
        Self::parse()
    }
}

const EXIT_CODES: &str = "Exit codes: 0 ok · 1 it ran and the answer is no · 2 usage · 3 the kernel \
lacks it · 4 not permitted · 5 the target vanished · 6 bad or corrupt file";

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Run(RunArgs),
    Status(StatusArgs),
    Doctor(DoctorArgs),
    Demo(DemoArgs),
    /// Measure Cowslip beside its rivals, all in one run
    #[command(subcommand)]
    Bench(Bench),
    Promote(Box<PromoteArgs>),
    Trace(TraceArgs),
    Compare(CompareArgs),
    Record(RecordArgs),
    /// Look at images: frozen arenas in files
    #[command(subcommand)]
    Image(Image),
    Restore(RestoreArgs),
}

/// Run a program with its large memory on huge pages and its fork() cheap
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip run -- redis-server --port 7777\n  \
    cowslip run --capacity 4G --log - -- ./my-store\n\nWithout --report the program takes this \
    process over (same process id).")]
pub(crate) struct RunArgs {
    /// Address space for the program's memory [default: the machine's memory and swap]
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub(crate) capacity: Option<ByteCount>,
    /// What the memory is made of
    #[arg(long, value_enum, default_value_t = BackingArg::Thp)]
    pub(crate) backing: BackingArg,
    /// Smallest anonymous mapping that goes into the arena
    #[arg(long, value_name = "SIZE", value_parser = byte_count, default_value = "32K")]
    pub(crate) threshold: ByteCount,
    /// How much the program maps before it gets an arena: the fork of less gains nothing
    #[arg(long, value_name = "SIZE", value_parser = any_byte_count, default_value = "4M",
        overrides_with = "arena_after")]
    pub(crate) arena_after: ByteCount,
    /// Whose malloc the program uses: glibc's takes memory that cannot be put into an arena
    #[arg(long, value_enum, default_value_t = MallocArg::Bundled)]
    pub(crate) malloc: MallocArg,
    /// Freeze without userfaultfd, even where it works: what was frozen once stays so, and is there twice as it is written
    #[arg(long)]
    pub(crate) plain: bool,
    /// Pass prctl(PR_SET_THP_DISABLE) on instead of answering it
    #[arg(long)]
    pub(crate) respect_thp_disable: bool,
    /// Have its children run while a processor has nothing else to do, and for PERCENT of one in any case, so that one
    /// that saves gives way to who serves
    #[arg(long, value_name = "PERCENT", value_parser = whole(1..=100u8))]
    pub(crate) child_share: Option<u8>,
    /// End its youngest child that still reads the memory it was forked with when more than SIZE of private copies are
    /// there because of that
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub(crate) child_memory: Option<ByteCount>,
    /// Help the programs that its children exec as well
    #[arg(long)]
    pub(crate) follow_exec: bool,
    /// Refuse to run a program that cannot be helped, instead of running it as without Cowslip
    #[arg(long)]
    pub(crate) strict: bool,
    /// Do not say that a program cannot be helped
    #[arg(long, short, conflicts_with = "strict")]
    pub(crate) quiet: bool,
    /// Write the counters as JSON when the program calls exit
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Say what happens, to a file or `-` for stderr (also COWSLIP_LOG)
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    pub(crate) program: Vec<std::ffi::OsString>,
}

/// Ask a running program for its counters: arenas, freezes, thaws, private pages, longest stall
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip status                # all programs with arenas\n  \
    cowslip status 4711 --watch   # one, every second")]
pub(crate) struct StatusArgs {
    /// Process id [default: all programs that this user may look into]
    #[arg(value_parser = whole(1..=i32::MAX))]
    pub(crate) pid: Option<i32>,
    /// Ask again every so many seconds, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", require_equals = true,
        value_parser = whole(1..=u64::MAX), conflicts_with = "json")]
    pub(crate) watch: Option<u64>,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Say what works here, at what cost, and which command mends what does not
#[derive(clap::Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Save a store under write load, the stock ways and with Cowslip, and verify every save
#[derive(clap::Args, Debug)]
pub(crate) struct DemoArgs {
    /// Data to keep in memory [default: fits the machine, 1 GiB at most]
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub(crate) size: Option<ByteCount>,
    /// Saves a rival
    #[arg(long, default_value_t = 5, value_parser = whole(1..=100u32))]
    pub(crate) saves: u32,
    /// Connections that write to Redis during the saves, each a request at a time
    #[arg(long, default_value_t = 50, value_parser = whole(1..=64u32))]
    pub(crate) clients: u32,
    /// Only the store of our own, without Redis
    #[arg(long)]
    pub(crate) no_redis: bool,
    /// The redis-server to run
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    pub(crate) redis_server: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Image {
    /// Say what an image holds and which others it needs
    Info(ImageArgs),
    /// Read every byte of an image and of those it needs, and check it (exit code 6: damaged)
    Verify(ImageArgs),
    Diff(DiffArgs),
    Merge(MergeArgs),
}

/// Say which chunks, pages and bytes differ between two images, and which roots that touches
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit codes: 0 the same · 1 they differ · 2 and above: it could not be found out"
)]
pub(crate) struct DiffArgs {
    /// An image
    pub(crate) first: PathBuf,
    /// Another
    pub(crate) second: PathBuf,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Make one complete image of an image and those it needs, which are checked while they are read
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip image merge friday -o week --compress zstd:9\n  \
    cowslip image merge friday -o friday    # then it needs no other\n\nThe output is the same \
    image, of the same instant: it may take the place of the one that was merged.")]
pub(crate) struct MergeArgs {
    /// The last image of the chain
    pub(crate) file: PathBuf,
    /// Where the complete image goes, whole or not at all
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// How its chunks are compressed: none, lz4, zstd or zstd:LEVEL (1 to 22)
    #[arg(long, value_name = "HOW", default_value_t = Compression::None)]
    pub(crate) compress: Compression,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ImageArgs {
    /// The image
    pub(crate) file: PathBuf,
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Restore an image into a process of its own, to look at it or to serve it as a template
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip restore store.image\n  \
    cowslip restore store.image --dump 0:4K | xxd\n  \
    cowslip restore store.image --serve /run/store.socket\n\nThe memory can be read, not written. It \
    stays until Ctrl-C.")]
pub(crate) struct RestoreArgs {
    /// The image
    pub(crate) image: PathBuf,
    /// How it becomes memory
    #[arg(long, value_enum, default_value_t = StrategyArg::Hybrid)]
    pub(crate) strategy: StrategyArg,
    /// Which of the image's arenas
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole(0..=u32::MAX))]
    pub(crate) arena: u32,
    /// Hand it to whoever of this user connects to this Unix socket (`Template::receive`)
    #[arg(long, value_name = "SOCKET", conflicts_with = "dump")]
    pub(crate) serve: Option<PathBuf>,
    /// Write these bytes, from the arena's start, to stdout, and end
    #[arg(long, value_name = "OFFSET:LENGTH", value_parser = span)]
    pub(crate) dump: Option<Span>,
    /// Remember beside the image which chunks the dump read: later restores bring them in first
    #[arg(long, requires = "dump")]
    pub(crate) record: bool,
    /// Write where it is as JSON to a file, or `-` for stdout, once it is there
    #[arg(long, value_name = "FILE", conflicts_with = "dump")]
    pub(crate) json: Option<PathBuf>,
}

/// A part of an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    /// Copy-on-write under huge pages: the pause and the writes after it (seed 000, seed 002)
    Cow(BenchArgs<cow::Part>),
    /// Forking from a big process: latency, page tables, and what the faults cost afterwards (seed 002)
    Fork(BenchArgs<fork::Part>),
    /// Restoring from an image and saving to it, all ways and others' (seed 004) [default size: 512 MiB]
    Restore(BenchArgs<restore::Part>),
    /// Memory held but not used, faults and stalls under huge pages (seed 001) [default size: 1 GiB]
    Bloat(BenchArgs<bloat::Part>),
    /// A process that does as it is told, for `bench bloat`
    #[command(hide = true)]
    BloatProcess,
    /// Tracing page faults: overhead beside perf, events lost, the picture (seed 003)
    Trace(BenchArgs<trace::Part>),
    /// One restore in a process of its own, for `bench restore`
    #[command(hide = true)]
    RestoreProcess(restore::ProcessArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchArgs<P: ValueEnum + Send + Sync + 'static> {
    /// The largest memory to work on [default: the bench's, or 8 GiB; at most a third of the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub(crate) size: Option<ByteCount>,
    /// Repetitions of each measurement of a pause
    #[arg(long, default_value_t = 9, value_parser = whole(1..=1000u32))]
    pub(crate) runs: u32,
    /// Measure only this; may be given several times [default: everything]
    #[arg(long, value_enum, value_name = "PART")]
    pub(crate) only: Vec<P>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Where results go besides the table
#[derive(clap::Args, Debug)]
pub(crate) struct OutputArgs {
    /// Write JSON to a file, or `-` for stdout (then no table)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write one self-contained page with charts
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MallocArg {
    /// The bundled one (jemalloc), unless the program or its user brings one along, such as tcmalloc or mimalloc
    Bundled,
    /// The one it has
    Keep,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum BackingArg {
    /// Transparent huge pages, else base pages
    Thp,
    /// Base pages
    Base,
}

fn any_byte_count(text: &str) -> Result<ByteCount, String> {
    ByteCount::parse(text).ok_or_else(|| "a size such as 0, 512K or 4MiB is wanted".into())
}

fn byte_count(text: &str) -> Result<ByteCount, String> {
    match ByteCount::parse(text) {
        Some(count) if count.0 > 0 => Ok(count),
        _ => Err("a size such as 512M or 8GiB is wanted".into()),
    }
}

fn span(text: &str) -> Result<Span, String> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => ByteCount::parse(text).map(|count| count.0),
    };
    let span = text.split_once(':').and_then(|(offset, length)| {
        Some(Span { offset_bytes: number(offset)?, length_bytes: number(length)? })
    });
    span.ok_or("an offset and a length such as 0x200000:4K are wanted".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{Span, span};

    #[test]
    fn spans_are_offsets_and_lengths() {
        let wanted = Span { offset_bytes: 0x20_0000, length_bytes: 4096 };
        assert_eq!(span("0x200000:4K"), Ok(wanted));
        assert_eq!(span("2M:4096"), Ok(wanted));
        assert!(span("2M").is_err() && span("0xg:1").is_err() && span(":").is_err());
    }

    #[test]
    fn the_table_is_consistent() {
        super::Args::command().debug_assert();
    }
}
