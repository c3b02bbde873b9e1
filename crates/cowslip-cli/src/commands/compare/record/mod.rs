//! `cowslip compare record`: a result is added to a series.

mod args;
pub(super) mod commit;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use cowslip_compare::history::{Entry, MACHINE, Store};
use cowslip_compare::inputs::{self, Benchmark, Run};
use cowslip_compare::recorder::facts;
use cowslip_compare::stats::median;
use cowslip_report::{Progress, text};

use super::result::{format, trouble};
use super::run::{Ended, Once};
use crate::commands::signals::Signals;
use crate::exit::{self, CommandResult, Failure};
pub(super) use args::RecordArgs;

pub(super) fn record(args: &RecordArgs) -> CommandResult {
    // From the beginning: an interrupt after the last run counts, too.
    let signals = Signals::listen(None).map_err(exit::system("listen for signals"))?;
    let (benchmarks, time) = match &args.from {
        Some(file) => (inputs::read_benchmarks(file).map_err(trouble)?, written(file)),
        None => (vec![Benchmark { name: String::new(), runs: run(args)? }], SystemTime::now()),
    };
    let time = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let names_machine = |run: &Run| MACHINE.iter().any(|fact| run.facts.contains_key(*fact));
    let is_known = args.from.is_none()
        || args.this_machine
        || benchmarks.iter().flat_map(|benchmark| &benchmark.runs).any(names_machine);
    let here = if is_known { facts() } else { BTreeMap::new() };
    let store = Store::new(&args.into);
    // Read before any is added: nothing is added if one of them is unusable.
    let mut entries = Vec::new();
    for benchmark in &benchmarks {
        let mut entry = Entry::from_runs(&benchmark.runs, &here, time).map_err(trouble)?;
        entry.commit = args.commit.clone().or(entry.commit).or_else(commit::of_this_folder);
        entry.label = args.label.clone();
        if args.from.is_none() {
            entry.facts.insert("command".to_owned(), args.command.join(" "));
        }
        let name = match benchmark.name.as_str() {
            "" => args.name.clone(),
            benchmark => format!("{}/{benchmark}", args.name),
        };
        store.file(&name).map_err(trouble)?;
        entries.push((name, entry));
    }
    if !is_known {
        let advice = "the file does not say on which machine it was made; if it was this one: --this-machine";
        errln!("cowslip: {advice}");
    }
    for (name, entry) in &entries {
        let number = store.append(name, entry, &|| signals.stops()).map_err(trouble)?;
        outln!("{}: entry {number}, {}", text::printable(name), summary(entry));
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the command in the way of one side of `compare run`.
fn run(args: &RecordArgs) -> Result<Vec<Run>, Failure> {
    let command = quoted(&args.command);
    let mut once = Once::new(&args.way)?;
    let mut progress = Progress::new();
    let mut runs = Vec::new();
    for (phase, turns) in [("warming up", args.way.warmup), ("recording", args.runs)] {
        if turns == 0 {
            continue;
        }
        progress.phase(phase);
        for turn in 0..turns {
            progress.set(u64::from(turn), u64::from(turns));
            let is_recorded = phase == "recording";
            let Some(recording) = one(&mut once, &command, is_recorded)? else {
                progress.finish();
                let why = format!("interrupted; nothing is added to {}", args.name);
                return Err(Failure::new(exit::NOT_THE_COMMAND, why));
            };
            if is_recorded {
                runs.extend(inputs::parse(&recording, "a run", None).map_err(trouble)?);
            }
        }
    }
    progress.finish();
    Ok(runs)
}

/// One run, with the commands before and after it; `None` after Ctrl-C.
fn one(once: &mut Once<'_>, command: &str, is_recorded: bool) -> Result<Option<String>, Failure> {
    if once.prepare()? == Ended::Interrupted {
        return Ok(None);
    }
    let mut recording = Some((Vec::new(), Default::default()));
    if is_recorded {
        let failed = || exit::system("record the run");
        recording = once.recorded("command", command, Vec::new(), failed)?;
    } else if once.plain("command", command)? == Ended::Interrupted {
        recording = None;
    }
    match recording {
        Some((bytes, _)) if once.cleanup()? == Ended::Itself => {
            Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
        }
        _ => Ok(None),
    }
}

/// The time at which a file was written.
fn written(file: &Path) -> SystemTime {
    let written = fs::metadata(file).and_then(|metadata| metadata.modified());
    written.unwrap_or_else(|_| SystemTime::now())
}

/// Words as a command for `sh -c`, which it replaces the shell by.
fn quoted(words: &[String]) -> String {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "-_./=:,+@%".contains(character);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let words: Vec<String> = words.iter().map(quote).collect();
    format!("exec {}", words.join(" "))
}

fn summary(entry: &Entry) -> String {
    let wall = entry.metrics.get("wall_seconds");
    let of = wall.or(entry.metrics.values().next());
    let runs = text::count(of.map_or(0, Vec::len), "run");
    let wall = wall.and_then(|values| median(values.iter().copied()));
    let wall = wall.map_or(String::new(), |seconds| format!(", {}", format::seconds(seconds)));
    let commit = entry.commit.as_deref().map(commit::short);
    let commit =
        commit.map_or(String::new(), |commit| format!(", commit {}", text::printable(&commit)));
    format!("{runs}{wall}{commit}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_stay_words_in_a_shell() {
        let words = ["./a b", "it's", "", "$x", "--n=1"].map(str::to_owned);
        assert_eq!(super::quoted(&words), r#"exec './a b' 'it'\''s' '' '$x' --n=1"#);
    }
}
