//! `cowslip generate`: files that packages have beside the command, made from its one table. Only packaging/build calls
//! it.

mod args;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::shells;
use clap_mangen::Man;
use cowslip_report::sink;

use crate::exit::{self, CommandResult};
pub(super) use args::Action;
use args::Shell;

const NAME: &str = "cowslip";

pub(super) fn run(action: &Action) -> CommandResult {
    let mut table = super::Args::command();
    match action {
        Action::Man { folder, date } => {
            table = table.disable_help_subcommand(true);
            table.build();
            write_pages(&table, folder, date)
                .map_err(exit::io(format!("write man pages to {}", folder.display())))?;
        }
        Action::Completions { shell } => {
            let mut text = Vec::new();
            match shell {
                Shell::Bash => clap_complete::generate(shells::Bash, &mut table, NAME, &mut text),
                Shell::Zsh => clap_complete::generate(shells::Zsh, &mut table, NAME, &mut text),
                Shell::Fish => clap_complete::generate(shells::Fish, &mut table, NAME, &mut text),
            }
            sink::print(&String::from_utf8_lossy(&text)).map_err(exit::io("print completions"))?;
        }
    }
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
