//! One file a subcommand.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod image;
pub(crate) mod promote;
pub(crate) mod restore;
pub(crate) mod run;
pub(crate) mod signals;
pub(crate) mod status;
