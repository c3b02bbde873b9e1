//! One file a subcommand.

pub(crate) mod bench_cow;
pub(crate) mod demo;
pub(crate) mod doctor;
mod elf;
pub(crate) mod run;
pub(crate) mod status;
