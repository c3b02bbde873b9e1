//! `cowslip promote --check-config`.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use cowslip_promote::plan::{Plan, UNIT_FOLDER};
use cowslip_promote::session;
use cowslip_report::text;

use super::args::PromoteArgs;
use crate::exit::{CommandResult, Failure, USAGE};

const UNIT: &str = "cowslip-promote.service";
/// The configuration that the unit starts with.
const UNIT_CONFIG: &str = "/etc/cowslip/promote.toml";
/// systemd sets this for a service with folders of its own: this command is then the unit's, and writing was tried.
const OF_UNIT: &str = "RUNTIME_DIRECTORY";

/// Checks the configuration.
pub(super) fn run(plan: &Plan, args: &PromoteArgs) -> CommandResult {
    plan.check_metrics_file()?;
    check_unit(plan, args)?;
    for (path, errno) in session::missing(plan) {
        errln!("cowslip: control group {}: {errno}; it will be waited for", path.display());
    }
    let targets = text::count(plan.rules.len(), "target");
    outln!("{targets}; the configuration makes sense");
    Ok(ExitCode::SUCCESS)
}

/// The caller may be able to write where the packaged unit is not: an error for the unit's own configuration, else a
/// warning.
fn check_unit(plan: &Plan, args: &PromoteArgs) -> Result<(), Failure> {
    if std::env::var_os(OF_UNIT).is_some() {
        return Ok(());
    }
    let installed = cowslip_setup::writable_folders(None, UNIT);
    let is_units = installed.is_some() && args.config.as_deref().is_some_and(is_unit_config);
    let folders = installed.unwrap_or_else(|| vec![UNIT_FOLDER.into()]);
    let files = [("metrics_file", &plan.metrics_file), ("--record", &args.record)];
    for (name, file) in files.into_iter().filter_map(|(name, file)| Some((name, file.as_ref()?))) {
        if folders.iter().any(|folder| file.starts_with(folder)) {
            continue;
        }
        let allowed: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        let message = format!(
            "{name} {}: {UNIT} can write below {} only; name a file there, or add ReadWritePaths= by `systemctl edit {UNIT}`",
            file.display(),
            allowed.join(", ")
        );
        if is_units {
            return Err(Failure::new(USAGE, message));
        }
        errln!("cowslip: {message}");
    }
    Ok(())
}

fn is_unit_config(file: &Path) -> bool {
    fs::canonicalize(file)
        .is_ok_and(|file| fs::canonicalize(UNIT_CONFIG).is_ok_and(|config| config == file))
}
