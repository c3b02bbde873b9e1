//! What is asked for something at a URL becomes the program that can reach it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::exit::{Failure, USAGE};
use crate::remote::is_url;

/// The program that can.
const PROGRAM: &str = "cowslip-remote";
/// What takes URLs.
const COMMANDS: [&str; 3] = ["image", "restore", "serve"];

/// Becomes the program that can, if this one is asked for something at a URL.
pub(crate) fn hand_over() -> Result<(), Failure> {
    let mut words = std::env::args_os().skip(1);
    let takes_urls = words.next().is_some_and(|word| COMMANDS.iter().any(|it| word == *it));
    if !takes_urls || !words.any(|word| is_url(&word)) {
        return Ok(());
    }
    let beside = std::env::current_exe().ok().map(|it| it.with_file_name(PROGRAM));
    let program = beside.filter(|it| it.is_file()).unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).args(std::env::args_os().skip(1)).exec();
    let why = match error.kind() {
        io::ErrorKind::NotFound => {
            "it is not installed: it comes beside `cowslip`, or by `cargo install cowslip-remote-cli`"
                .to_owned()
        }
        _ => format!("{}: {error}", program.display()),
    };
    Err(Failure::new(USAGE, format!("URLs need the program {PROGRAM}; {why}")))
}
