//! The `cowslip` command.

#[macro_use]
mod lines;

mod commands;
mod exit;
mod remote;

use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::Command::of_this_process().run() {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
