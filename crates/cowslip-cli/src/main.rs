//! The `cowslip` command.

#[macro_use]
mod lines;

mod commands;
mod exit;
mod hand_over;
mod remote;

use std::process::ExitCode;

fn main() -> ExitCode {
    match hand_over::hand_over().and_then(|()| commands::Command::of_this_process().run()) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
