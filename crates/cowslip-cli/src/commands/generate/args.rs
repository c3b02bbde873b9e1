//! The options of `cowslip generate`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

#[derive(Subcommand, Debug)]
pub(crate) enum Action {
    /// Write a man page of each command
    Man {
        /// Where they go
        folder: PathBuf,
        /// The date on them, such as 2026-11-23
        date: String,
    },
    /// Print what completes the command's words
    Completions {
        /// The shell to complete for
        shell: Shell,
    },
}

#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}
