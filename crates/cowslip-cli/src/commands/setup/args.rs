//! The options of `cowslip setup`.

use std::path::PathBuf;

/// Prepare this machine, once and as root, so that ordinary users' programs and services have all of Cowslip
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  sudo cowslip setup --dry-run redis-server   # what it would do\n  \
    sudo cowslip setup --user alice redis-server\n  sudo cowslip setup --undo\n\n\
    It says each step, and whether it was needed; a second time it changes nothing. docs/setup.md says what it writes.\n\
    Exit codes: 0 all is as it should be · 1 a step failed · 2 usage, or there is no such \
    service or user · 4 not root."
)]
pub(crate) struct Args {
    /// systemd services that should start their programs by `cowslip run`
    #[arg(value_name = "SERVICE", value_parser = service_name)]
    pub(super) services: Vec<String>,
    /// Let this user's programs have it: the user joins the group cowslip
    #[arg(long = "user", value_name = "NAME", value_parser = user_name)]
    pub(super) users: Vec<String>,
    /// Take back what setup wrote: for the SERVICEs and users that are named, or all of it
    #[arg(long)]
    pub(super) undo: bool,
    /// Say what would be done, and do nothing
    #[arg(long, short = 'n')]
    pub(super) dry_run: bool,
    /// Leave the kernel's setting for huge pages in shared memory as it is
    #[arg(long)]
    pub(super) keep_shmem_enabled: bool,
    /// Prepare the system whose files are below DIR, which does not run: only its files are changed
    #[arg(long, value_name = "DIR")]
    pub(super) root: Option<PathBuf>,
    /// Write JSON to a file, or `-` for stdout (then no lines)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Adds the suffix `.service`.
fn service_name(text: &str) -> Result<String, String> {
    let name = text.strip_suffix(".service").unwrap_or(text);
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || ":-_.\\@".contains(character);
    match !name.is_empty() && name.chars().all(is_plain) && !name.ends_with('@') {
        true => Ok(format!("{name}.service")),
        false => {
            Err("the name of a systemd service is wanted, of a template one instance (name@1)"
                .into())
        }
    }
}

fn user_name(text: &str) -> Result<String, String> {
    let is_plain = |character: char| {
        !character.is_whitespace() && !character.is_control() && !":,/".contains(character)
    };
    match !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("the name of a user is wanted".into()),
    }
}
