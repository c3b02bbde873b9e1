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

#[allow(unsafe_code)]
// SAFETY: it makes system calls alone, which need nothing that is not initialised yet.
#[unsafe(link_section = ".init_array")]
#[used]
static NOTE: extern "C" fn() = cowslip_sys::started_with::note;

fn main() -> ExitCode {
    match commands::Command::of_this_process().run() {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
