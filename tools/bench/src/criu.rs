//! CRIU, beside which Cowslip is measured.

use std::path::Path;
use std::process::Command;

use super::error::{Error, Result, during};

/// A command of CRIU.
pub(crate) fn command(action: &str, images: Option<&Path>) -> Command {
    let mut command = Command::new("criu");
    command.arg(action);
    if let Some(images) = images {
        command.arg("--images-dir").arg(images);
    }
    command
}

/// Runs it to its end. Its errors are the reason of a failure.
pub(crate) fn finish(command: &mut Command) -> Result<()> {
    let ended = command.output().map_err(during("run criu (apt-get install criu)"))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    let errors: Vec<&str> = said.lines().filter(|line| line.contains("Error")).collect();
    let action = command.get_args().next().unwrap_or_default().display();
    Err(Error::Failed(format!("criu {action} failed ({}): {}", ended.status, errors.join("; "))))
}

/// Asks CRIU if it can work on this kernel.
pub(crate) fn check() -> Result<()> {
    finish(&mut command("check", None))
}
