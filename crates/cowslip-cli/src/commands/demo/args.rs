//! The options of `cowslip demo`.

use std::path::PathBuf;

use cowslip::units::ByteCount;

use crate::commands::numbers::{byte_count, whole};
use crate::commands::output::OutputArgs;

/// Save a store under write load, the stock ways and with Cowslip, and verify every save
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Data to keep in memory [default: fits the machine, 1 GiB at most]
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub(super) size: Option<ByteCount>,
    /// Saves a rival
    #[arg(long, default_value_t = 5, value_parser = whole(1..=100u32))]
    pub(super) saves: u32,
    /// Connections that write to Redis during the saves, each a request at a time
    #[arg(long, default_value_t = 50, value_parser = whole(1..=64u32))]
    pub(super) clients: u32,
    /// Only the store of our own, without Redis
    #[arg(long)]
    pub(super) no_redis: bool,
    /// The redis-server to run
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    pub(super) redis_server: PathBuf,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}
