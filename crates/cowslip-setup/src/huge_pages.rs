//! Huge pages for arenas of ordinary users: `shmem_enabled`, for this boot and the next ones.

use cowslip_sys::procfs;

use super::machine::{Content, Machine};
use super::report::Change::{Made, Needless};
use super::report::{Outcome, Trouble};

const FILE: &str = "/etc/tmpfiles.d/cowslip.conf";
/// Precedes the kernel's former setting.
const BEFORE: &str = "# before: ";
const WORD: &str = "advise";

pub(crate) fn allow(machine: &Machine) -> Outcome {
    let setting = procfs::SHMEM_ENABLED;
    let (before, is_set) = match machine.content(FILE)? {
        Content::Ours(text) => (before(&text), false),
        _ => (None, true),
    };
    let now = if machine.is_running() { Some(look()?) } else { None };
    match now.as_deref() {
        Some("deny") => {
            let why = format!("{setting} is deny: somebody ruled huge pages out");
            return Err(Trouble::new(
                why,
                format!("if it may be otherwise: echo {WORD} > {setting}"),
            ));
        }
        // Set by another program, and sufficient.
        Some(word) if word != "never" && is_set => {
            return Ok(Needless(format!("{setting} is {word}")));
        }
        _ => {}
    }
    let before =
        before.or_else(|| now.clone()).map_or(String::new(), |word| format!("{BEFORE}{word}\n"));
    let line = format!(
        "# Memory of memfds is on huge pages where a program asks for them.\nw {setting} - - - - {WORD}\n"
    );
    let is_written = machine.write(FILE, &format!("{before}{line}"))?;
    let is_changed = now.as_deref() == Some("never");
    if is_changed && let Err(trouble) = machine.set(setting, WORD) {
        // In a container the kernel may refuse it. Then no file is left for the next boot.
        if is_set {
            machine.remove(FILE)?;
        }
        return Err(trouble);
    }
    let told = format!("{setting} is {WORD}, by {FILE} after each boot");
    Ok(if is_written || is_changed { Made(told) } else { Needless(told) })
}

pub(crate) fn undo(machine: &Machine) -> Outcome {
    let before = match machine.content(FILE)? {
        Content::Ours(text) => before(&text),
        _ => return Ok(Needless(format!("setup wrote no {FILE}"))),
    };
    let mut told = format!("{FILE} is removed");
    // A setting that was changed since is kept. After a failure the next undo needs the file.
    if let Some(before) =
        before.filter(|_| machine.is_running() && look().is_ok_and(|word| word == WORD))
    {
        machine.set(procfs::SHMEM_ENABLED, &before)?;
        told += &format!(", shmem_enabled is {before} as before");
    }
    machine.remove(FILE)?;
    Ok(Made(told))
}

fn look() -> Result<String, Trouble> {
    procfs::shmem_setting().ok_or_else(|| {
        let why = format!("{} cannot be read", procfs::SHMEM_ENABLED);
        Trouble::new(why, "a kernel with CONFIG_TRANSPARENT_HUGEPAGE, or --keep-shmem-enabled")
    })
}

fn before(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(BEFORE)).map(str::to_owned)
}
