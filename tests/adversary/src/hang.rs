//! Where the processes of a group are that do not end.

use std::fmt::Write as _;
use std::fs;

use crate::program::Program;
use crate::shared::Shared;

/// Every thread of the group: its state, what the kernel has it wait for, and its call.
pub(crate) fn describe(group: i32, program: &Program, shared: &Shared) -> String {
    let mut text = String::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if field(&format!("/proc/{pid}/stat"), 2) != Some(group.to_string()) {
            continue;
        }
        for task in fs::read_dir(entry.path().join("task")).into_iter().flatten().flatten() {
            let of = |file: &str| {
                let text = fs::read_to_string(task.path().join(file)).unwrap_or_default();
                text.split('\n').next().unwrap_or_default().to_owned()
            };
            let tid: u32 = task.file_name().to_string_lossy().parse().unwrap_or(0);
            let state = field(&task.path().join("stat").to_string_lossy(), 0).unwrap_or_default();
            let (name, wchan, call) = (of("comm"), of("wchan"), of("syscall"));
            let _ = write!(text, "  {pid}/{tid} {name} {state} {wchan} syscall {call}");
            for (process, thread, index, _) in shared.places().iter().filter(|it| it.3 == tid) {
                let call = program.thread(*process, *thread).get(*index);
                let call = call.map_or("its end".to_owned(), ToString::to_string);
                let _ = write!(text, " (process {process} thread {thread}: {call})");
            }
            text.push('\n');
        }
    }
    text
}

/// A field of `proc_pid_stat(5)` after the name: 0 is the state, 2 the process group.
fn field(path: &str, index: usize) -> Option<String> {
    let stat = fs::read_to_string(path).ok()?;
    Some(stat.rsplit(')').next()?.split_whitespace().nth(index)?.to_owned())
}
