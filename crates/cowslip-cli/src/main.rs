//! The `cowslip` command.

mod output;

fn main() {}
