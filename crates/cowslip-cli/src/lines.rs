//! `outln!` and `errln!`: `println!` and `eprintln!` for a reader that may go away. The standard ones panic then
//! (`cowslip … | head -1`, a log's reader that has ended).
//!
//! To lose a reader is no error: what is being done goes on, and what was changed is put back in the end. Any other
//! error of standard output (a full disk) ends the program, with its exit code.

use std::fmt::Arguments;
use std::io::{self, Write};

use cowslip_report::sink;

use crate::exit;

/// As the standard one, for a reader that may go away.
macro_rules! outln {
    () => { $crate::lines::print(format_args!("\n")) };
    ($($line:tt)*) => { $crate::lines::print(format_args!("{}\n", format_args!($($line)*))) };
}

/// As the standard one, for a reader that may go away.
macro_rules! errln {
    ($($line:tt)*) => { $crate::lines::print_error(format_args!("{}\n", format_args!($($line)*))) };
}

pub(crate) fn print(line: Arguments<'_>) {
    if let Err(error) = sink::print(&line.to_string()) {
        exit::io("print")(error).exit();
    }
}

/// Nobody could be told of an error.
pub(crate) fn print_error(line: Arguments<'_>) {
    let _ = io::stderr().write_all(line.to_string().as_bytes());
}
