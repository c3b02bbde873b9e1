//! The `cowslip` command.

#[macro_use]
mod lines;

mod commands;
mod exit;
mod remote;

use std::process::ExitCode;

use cowslip_sys::out_of_memory::CommandAllocator;

#[global_allocator]
static ALLOCATOR: CommandAllocator = CommandAllocator("cowslip");

fn main() -> ExitCode {
    match commands::Command::of_this_process().run() {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
