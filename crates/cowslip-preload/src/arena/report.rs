//! `COWSLIP_REPORT`: the counters as JSON when the program calls `exit`.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::fmt::Write;
use std::io::Write as _;
use std::path::Path;
use std::{fs, io};

use cowslip::Footprint;
use cowslip_sys::atomic_file::Target;
use cowslip_sys::process;

use crate::arena::registry::{arenas, own};
use crate::rt::config::config;
use crate::rt::fork_state::has_parent;
use crate::rt::log::say;

/// Writes the report, once.
pub(crate) fn write() {
    static IS_WRITTEN: AtomicBool = AtomicBool::new(false);
    let Some(file) = &config().report else { return };
    let mut text = String::from("{\n  \"schema\": \"cowslip.report/1\"");
    // A forked child that calls exit must not overwrite the report of its parent.
    if has_parent() || IS_WRITTEN.swap(true, Relaxed) {
        return;
    }
    match own().or_else(|| arenas().last()) {
        Some(arena) => {
            let pages = if arena.pages().is_huge() { "huge" } else { "base" };
            let _ = write!(text, ",\n  \"pages\": \"{pages}\"");
            let metrics = arena.metrics();
            for (name, value) in metrics.fields() {
                let _ = write!(text, ",\n  \"{name}\": {value}");
            }
            if let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") {
                let footprint = Footprint::measure(process::pid(), &smaps, &metrics);
                for (name, bytes) in [
                    ("held_bytes", footprint.held_bytes),
                    ("resident_bytes", footprint.resident_bytes),
                    ("private_bytes", footprint.private_bytes),
                    ("huge_mapped_bytes", footprint.huge_mapped_bytes),
                    ("anonymous_elsewhere_bytes", footprint.elsewhere_bytes),
                ] {
                    let _ = write!(text, ",\n  \"{name}\": {bytes}");
                }
                let percent = footprint.in_arena_percent();
                let _ = write!(text, ",\n  \"anonymous_in_arena_percent\": {percent:.1}");
            }
        }
        None => {
            let why = "no mapping was large enough for an arena, or none could be made";
            let _ = write!(text, ",\n  \"arena\": null,\n  \"why\": \"{why}\"");
        }
    }
    text.push_str("\n}\n");
    if let Err(error) = put(file, &text) {
        say!("cannot write the report {}: {error}", file.display());
    }
}

/// Replaces a file without waiting for the disk; a device or a FIFO is written to. The file's first name can be foreseen:
/// nothing that another user put there is followed.
fn put(path: &Path, text: &str) -> io::Result<()> {
    let Target::File(path) = Target::find(path)? else { return fs::write(path, text) };
    let mut temporary = path.clone().into_os_string();
    temporary.push(format!(".{}", process::pid()));
    // Left behind by a killed process of this number, or put there.
    let _ = fs::remove_file(&temporary);
    let mut file = fs::File::create_new(&temporary)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&temporary, path));
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}
