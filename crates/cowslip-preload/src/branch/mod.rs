//! `cowslip branch`: copies of the program from one instant.

mod copy;
mod forks;
mod hold;
mod listener;
mod marks;
mod point;
pub(crate) mod socket;
mod supervisor;
