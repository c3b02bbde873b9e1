//! `cowslip warm` and `cowslip start`: a program is started up to a point, and copies of it go on from there.
//!
//! ```text
//!  cowslip warm NAME -- COMMAND ──starts──▶ the program, up to its point ──hold──▶ holder; the program ends
//!  cowslip start NAME ──streams, folder, job──▶ warm: a copy of the holder ──▶ pid, status ──▶ cowslip start
//! ```

mod client;
mod point;
mod server;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use cowslip_sys::process;

use super::numbers::positive;
use crate::exit::{CommandResult, OF_COMMANDS};
use point::Point;

const EXAMPLES: &str = "Examples:
  cowslip warm numpy -- python3 -m cowslip.warm numpy pandas &
  cowslip start numpy -- report.py --year 2026            # has numpy and pandas from the beginning
  cowslip warm bc -- bc -l &                              # warm at its first read of standard input
  echo '4*a(1)' | cowslip start bc
  cowslip warm shop --until port:8080 -- java -jar shop.jar &
  cowslip start shop --net

A program that wants arguments and environment of each start reads them from the descriptor COWSLIP_WARM_FD: JSON, to its \
end. Programs need no library. All copies have the same random numbers that were drawn before.";

/// Start a program up to a point, and keep it warm: `cowslip start` has copies go on from there
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A name, one for each program of a user
    #[arg(value_parser = name)]
    pub(super) name: String,
    /// The point: read, line:TEXT, port:N or seconds:N [default: read, of standard input or of COWSLIP_WARM_FD]
    #[arg(long, value_name = "POINT", default_value = "read")]
    pub(super) until: Point,
    /// How long the program may take to come there
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub(super) timeout: Duration,
    /// End with standard input, for a program that starts this and may be killed
    #[arg(long)]
    pub(super) while_input: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// Run a copy of a program that `cowslip warm` keeps
#[derive(clap::Args, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{OF_COMMANDS}"))]
pub(crate) struct StartArgs {
    /// The name
    #[arg(value_parser = name, required_unless_present = "list")]
    pub(super) name: Option<String>,
    /// Give the copy a network of its own, in which it listens at the program's ports
    #[arg(long)]
    pub(super) net: bool,
    /// Give the copy its own version of this folder: other processes see none of its changes there; may be given several times
    #[arg(long, value_name = "FOLDER")]
    pub(super) private: Vec<PathBuf>,
    /// List the warm programs
    #[arg(long, exclusive = true)]
    pub(super) list: bool,
    /// Write the result as JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Arguments, for a program that reads its job
    #[arg(last = true, value_name = "ARG")]
    pub(super) arguments: Vec<OsString>,
}

fn name(text: &str) -> Result<String, String> {
    const MOST_BYTES: usize = 60;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match (1..=MOST_BYTES).contains(&text.len()) && text.bytes().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("letters, digits, -, _ and . are wanted".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    positive(1e6)(text).map(Duration::from_secs_f64)
}

/// The beginning of the abstract name at which this user's programs are kept (`unix(7)`).
fn prefix() -> String {
    format!("cowslip-warm-{}-", process::effective_uid())
}

/// Tells a program the number of the descriptor from which it may read its job.
const JOB_VARIABLE: &str = "COWSLIP_WARM_FD";

/// The version of the messages between the two commands.
const VERSION: u32 = 2;

/// The longest message: the environment and the arguments of a start.
const MOST_MESSAGE_BYTES: usize = 128 << 10;

pub(super) fn run(args: &Args) -> CommandResult {
    server::run(args)
}

pub(super) fn start(args: &StartArgs) -> CommandResult {
    client::run(args)
}
