//! The options of `cowslip branch`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::commands::numbers::{positive, whole};
use crate::exit::OF_COMMANDS;

const EXAMPLES: &str = "Examples:
  cowslip branch 4711 -n 8                      # COWSLIP_BRANCH is 0 to 7
  cowslip branch shop 'rate 0.9' 'rate 1.1'     # two, each with its COWSLIP_BRANCH_ARG
  cowslip branch shop -n 8 --output runs/%i.out
  cowslip branch 4711 -n 8 --net                # a server, with all its threads: see nsenter(1)
  cowslip branch 4711 -n 2 --private /srv/shop  # each has the files of its own there

A program that runs under `cowslip run` is copied when it calls cowslip_branch_point(). Any other, and with --running, is \
copied as it runs, with all its threads, by root, or by its user where user namespaces are allowed. A signal is passed on \
to the copies; they are killed if this command is.";

/// Copy a warm program, and run the copies to their end
#[derive(clap::Args, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{OF_COMMANDS} Of several copies the highest."))]
pub(crate) struct Args {
    /// The program's process id, or the name that it gave its branch point
    #[arg(value_name = "PID|NAME", required_unless_present = "list")]
    pub(super) program: Option<String>,
    /// A copy for each of these, which gets it as COWSLIP_BRANCH_ARG
    #[arg(value_name = "ARG")]
    pub(super) arguments: Vec<OsString>,
    /// How many copies, of each ARG if there are some
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = whole(1..=4096u32))]
    pub(super) copies: u32,
    /// Copy it as it runs, not at a branch point [default without `cowslip run`, and with --net, --private or --promote]
    #[arg(long)]
    pub(super) running: bool,
    /// Make its memory huge first (`cowslip promote --once`): it stands still for less time then
    #[arg(long)]
    pub(super) promote: bool,
    /// Give each copy a network of its own, in which it listens at the program's ports
    #[arg(long)]
    pub(super) net: bool,
    /// Give each copy its own version of this folder: other processes see none of its changes there; may be given several times
    #[arg(long, value_name = "FOLDER")]
    pub(super) private: Vec<PathBuf>,
    /// A variable for the environment of the copies
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(super) env: Vec<String>,
    /// Where they read standard input; %i is the copy's number [default: this command's for one copy, else nothing]
    #[arg(long, value_name = "FILE")]
    pub(super) input: Option<String>,
    /// Where their standard output goes; %i is the copy's number [default: where this command's goes]
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<String>,
    /// Where their standard error goes; %i is the copy's number [default: where this command's goes]
    #[arg(long, value_name = "FILE")]
    pub(super) error: Option<String>,
    /// How long the program may take to come to its branch point
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) timeout: Duration,
    /// Write each copy's result as JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Make no copies: have the program go on from its branch point
    #[arg(long, conflicts_with_all = ["arguments", "copies", "env", "input", "output", "error", "json", "net", "private", "promote", "running"])]
    pub(super) release: bool,
    /// Say which programs can be branched
    #[arg(long, exclusive = true)]
    pub(super) list: bool,
}

fn variable(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(text.to_owned()),
        _ => Err("NAME=VALUE is wanted".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    positive(1e6)(text).map(Duration::from_secs_f64)
}
