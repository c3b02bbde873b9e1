//! `outln!` and `errln!`: `println!` and `eprintln!` for a reader that may go away. The standard ones panic then
//! (`cowslip … | head -1`, a log's reader that has ended).
//!
//! Losing a reader is no error: the work goes on, and changes are undone in the end. Any other error of standard output
//! (a full disk) ends the program, with its exit code.

use std::fmt::Arguments;
use std::io::{self, Write};

use cowslip_report::sink;

use crate::exit;

/// Like `println!`, for a reader that may go away.
macro_rules! outln {
    () => { $crate::lines::print(format_args!("\n")) };
    ($($line:tt)*) => { $crate::lines::print(format_args!("{}\n", format_args!($($line)*))) };
}

/// Like `eprintln!`, for a reader that may go away.
macro_rules! errln {
    ($($line:tt)*) => { $crate::lines::print_error(format_args!("{}\n", format_args!($($line)*))) };
}

pub(crate) fn print(line: Arguments<'_>) {
    if let Err(error) = sink::print(&line.to_string()) {
        exit::io("print")(error).exit();
    }
}

/// Ignores an error: it could not be reported.
pub(crate) fn print_error(line: Arguments<'_>) {
    let _ = io::stderr().write_all(line.to_string().as_bytes());
}
