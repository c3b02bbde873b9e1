//! `cowslip man`: pages for packages, made from the one table of commands. Only packaging/build calls it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_mangen::Man;

use crate::exit::{self, CommandResult};

/// Write a man page of each command
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where they go
    folder: PathBuf,
    /// The date on them, such as 2026-11-23
    date: String,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut table = super::table().disable_help_subcommand(true);
    table.build();
    write_pages(&table, &args.folder, &args.date)
        .map_err(exit::io(format!("write man pages to {}", args.folder.display())))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for a command, and for each one below it.
fn write_pages(command: &clap::Command, folder: &Path, date: &str) -> io::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_pages(command, folder, date)?;
    }
    let source = concat!("cowslip ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).date(date).source(source).manual("Cowslip");
    page.generate_to(folder).map(drop)
}
