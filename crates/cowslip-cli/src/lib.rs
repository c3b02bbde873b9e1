//! What the `cowslip` command does, for the program `cowslip-remote`, which can also reach object stores.
//!
//! That takes an asynchronous runtime, TLS and four protocols, more than the command may weigh; so `cowslip` hands over
//! to the other program when it is given a URL. The command itself does not use this library: it has the same
//! modules, and is 0.2 MiB smaller that way.

#[macro_use]
mod lines;

mod commands;
mod exit;
mod remote;

use std::process::ExitCode;

pub use remote::{OpenUrl, Remote};

/// Does what this process was called for. `remote` is what reaches object stores.
pub fn main(remote: &'static dyn Remote) -> ExitCode {
    let _ = remote::REMOTE.set(remote);
    match commands::Command::of_this_process().run() {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
