#![allow(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names are C's")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what C must keep to is below, and with each function in its own words"
)]
//! Cowslip for C and C++: the functions of `include/cowslip.h`, which is generated from here.
//!
//! | module | its part of the interface |
//! | --- | --- |
//! | [`arena`] | memory, allocation, metrics |
//! | [`frozen`] | views of an instant |
//! | [`fork`] | forks that take arenas along |
//! | [`template`] | templates and their clones |
//! | [`branch`] | a place where `cowslip branch` may copy the program |
//! | [`image`] | save, verify, restore |
//! | [`error`], [`boundary`] | statuses, reasons, and the guard that keeps a panic from leaving Rust |
//!
//! # Safety
//! Every function that takes a pointer relies on the header's requirements for its caller, and on nothing else: a
//! handle is NULL, which is an error, or one that the library handed out and that is not freed; an array has the given
//! number of elements; a string ends with a NUL. `SAFETY: C's contract` means this.

pub mod arena;
mod boundary;
pub mod branch;
pub mod error;
pub mod fork;
pub mod frozen;
mod handles;
pub mod image;
pub mod template;

/// The version of this interface. It grows with every added function; nothing is removed while the library is
/// libcowslip.so.0.
pub const COWSLIP_ABI: u32 = 2;

/// The version of the interface that the library has: at least COWSLIP_ABI of the header, unless the library is older
/// than the program.
#[unsafe(no_mangle)]
pub extern "C" fn cowslip_abi() -> u32 {
    COWSLIP_ABI
}
