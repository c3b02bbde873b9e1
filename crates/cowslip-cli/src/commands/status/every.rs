//! `cowslip status` for all programs with arenas: one per line.

use std::fs;

use cowslip::units::ByteCount;
use cowslip_report::text::printable;

use super::arena::{Arena, Arenas, has_arena};

/// A program and its arenas.
pub(super) struct Program {
    pub(super) pid: i32,
    name: String,
    pub(super) arenas: Arenas,
}

/// The kernel keeps this many bytes of a program's name.
const MOST_NAME_BYTES: usize = 15;

impl Program {
    pub(super) fn is_called(&self, name: &str) -> bool {
        let kept = &name.as_bytes()[..name.len().min(MOST_NAME_BYTES)];
        self.name.as_bytes() == kept
    }
}

/// The programs that this user may look into.
pub(super) fn look() -> std::io::Result<Vec<Program>> {
    let mut programs = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse() else { continue };
        if !has_arena(pid) {
            continue;
        }
        // It may have ended meanwhile.
        if let Ok(arenas) = Arenas::read(pid)
            && (arenas.has_others || !arenas.known.is_empty())
        {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            programs.push(Program { pid, name: printable(name.trim_end()), arenas });
        }
    }
    programs.sort_by_key(|program| program.pid);
    Ok(programs)
}

pub(super) fn lines(programs: &[Program]) -> Vec<String> {
    if programs.is_empty() {
        return vec!["no program here has an arena".into()];
    }
    let head = ["PID", "PROGRAM", "STATE", "USED", "HELD", "MAPPED", "COPIES", "LEFT", "FORKS"];
    let row = |c: [&str; 9]| {
        let [pid, name, state, used, held, mapped, copies, left, forks] = c;
        format!(
            "{pid:>8} {name:<16} {state:<9} {used:>10} {held:>10} {mapped:>10} {copies:>10} {left:>10} {forks:>8}"
        )
    };
    let mut lines = vec![row(head)];
    for program in programs {
        let pid = program.pid.to_string();
        let arenas = &program.arenas.known;
        let own = arenas.iter().find(|arena| arena.metrics.is_owner == 1).or(arenas.first());
        let Some(own) = own else {
            lines.push(format!("{pid:>8} {:<16} of another version of Cowslip", program.name));
            continue;
        };
        let sum = |of: &dyn Fn(&Arena) -> u64| ByteCount(arenas.iter().map(of).sum());
        let forks: u64 = arenas.iter().map(|arena| arena.metrics.forks).sum();
        lines.push(row([
            &pid,
            &program.name,
            own.state(),
            &sum(&|arena| arena.metrics.used_bytes).to_string(),
            &sum(&|arena| arena.footprint.held_bytes).to_string(),
            &sum(&|arena| arena.footprint.resident_bytes).to_string(),
            &sum(&|arena| arena.footprint.private_bytes).to_string(),
            &sum(&|arena| arena.metrics.left_bytes).to_string(),
            &forks.to_string(),
        ]));
    }
    lines
}
