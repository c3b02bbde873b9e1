//! One file a subcommand.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod doctor;
mod elf;
pub(crate) mod image;
mod linked;
pub(crate) mod restore;
pub(crate) mod run;
pub(crate) mod status;
