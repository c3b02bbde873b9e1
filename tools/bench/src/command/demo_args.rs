//! The options of the demo.

use std::path::PathBuf;

use cowslip::units::ByteCount;

use super::args::{byte_count, whole};

/// Save a Redis under write load, the stock ways and with Cowslip, and verify every save
///
/// It takes one to two minutes on two processors, and shows at the end how the saves affected clients. The exit code is
/// 1 if a save was wrong, a request failed or a promise was missed, or it was interrupted.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Measure everything: more and larger saves, and children that give way
    #[arg(long)]
    pub(super) full: bool,
    /// Data to keep in memory [default: 512 MiB, with --full 1 GiB; less if the machine has less]
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub(super) size: Option<ByteCount>,
    /// Saves each way [default: 2, with --full 5]
    #[arg(long, value_parser = whole(1, 100))]
    pub(super) saves: Option<u32>,
    /// Connections that write to Redis during the saves, each with one request at a time
    #[arg(long, default_value_t = 50, value_parser = whole(1, 64))]
    pub(super) clients: u32,
    /// The redis-server to run
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    pub(super) redis_server: PathBuf,
    /// Write all numbers as JSON to a file, or `-` for stdout (then nothing else)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write one self-contained page with pictures
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Write the picture of how long requests waited around a save
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
}
