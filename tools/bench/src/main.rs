//! The command `cowslip-bench`.

mod command;

use std::process::ExitCode;

use clap::Parser;
use cowslip_sys::out_of_memory::CommandAllocator;

#[global_allocator]
static ALLOCATOR: CommandAllocator = CommandAllocator("cowslip-bench");

fn main() -> ExitCode {
    command::run(command::Args::parse().action).unwrap_or_else(|failure| failure.report())
}
