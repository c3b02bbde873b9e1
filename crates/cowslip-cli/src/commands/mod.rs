//! One module a command.

mod signals;

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod image;
pub(crate) mod restore;
pub(crate) mod run;
pub(crate) mod status;
