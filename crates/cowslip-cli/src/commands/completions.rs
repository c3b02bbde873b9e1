//! `cowslip completions`

use std::process::ExitCode;

use clap_complete::Shell;
use cowslip_report::sink;

use crate::exit::{self, CommandResult};

/// Print what completes this command's words in a shell
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  source <(cowslip completions bash)\n  \
    cowslip completions fish > ~/.config/fish/completions/cowslip.fish\n\nPackages install them already.")]
pub(crate) struct Args {
    /// The shell to complete for
    shell: Shell,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut super::table(), "cowslip", &mut text);
    sink::print(&String::from_utf8_lossy(&text)).map_err(exit::io("print completions"))?;
    Ok(ExitCode::SUCCESS)
}
