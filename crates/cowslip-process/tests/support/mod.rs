//! Programs of Debian's Python.

use std::path::Path;
use std::process::{Command, Stdio};

const PYTHON: &str = "/usr/bin/python3";

/// A command that runs the script, with pipes for its input and output.
pub(crate) fn python(script: &str) -> Option<Command> {
    if !Path::new(PYTHON).exists() {
        println!("SKIPPED: python: {PYTHON} is not there");
        return None;
    }
    let mut command = Command::new(PYTHON);
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    Some(command)
}
