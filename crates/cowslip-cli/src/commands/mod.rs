//! One file a subcommand.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod doctor;
mod elf;
mod linked;
pub(crate) mod run;
pub(crate) mod status;
