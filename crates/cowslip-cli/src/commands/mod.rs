//! The one table of commands; each has a module with its options and its code.

mod attach;
mod branch;
mod checkpoint;
mod compare;
mod completions;
mod doctor;
mod image;
mod man;
mod mark;
mod promote;
mod restore;
mod run;
mod serve;
mod setup;
mod status;
mod stored;
mod trace;
mod vm;
mod warm;

mod kept;
mod numbers;
mod passed_on;
mod signals;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::exit::CommandResult;

const EXIT_CODES: &str = "Exit codes: 0 ok · 1 it ran and the answer is no · 2 usage · 3 the kernel \
lacks it · 4 not permitted · 5 the target vanished · 6 bad or corrupt file · 70 it failed: out of memory, busy";

/// Snapshot, fork and restore big-memory Linux programs in microseconds, and keep the huge pages.
#[derive(Parser, Debug)]
#[command(name = "cowslip", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

/// [`Args`] of `run` only.
#[derive(Parser, Debug)]
#[command(name = "cowslip", max_term_width = 100)]
struct OfRun {
    #[command(subcommand)]
    command: Run,
}

#[derive(Subcommand, Debug)]
enum Run {
    Run(run::Args),
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Run(run::Args),
    Branch(branch::Args),
    Status(status::Args),
    Doctor(doctor::Args),
    Setup(setup::Args),
    Promote(Box<promote::args::PromoteArgs>),
    Trace(trace::Args),
    Compare(Box<compare::Args>),
    /// Look at images: frozen arenas in files
    #[command(subcommand)]
    Image(image::Action),
    Attach(attach::Args),
    Checkpoint(checkpoint::Args),
    Restore(restore::Args),
    Mark(mark::Args),
    Rollback(mark::RollbackArgs),
    Warm(warm::Args),
    Start(warm::StartArgs),
    Serve(serve::Args),
    /// Keep and copy virtual machines of QEMU while they run
    #[command(subcommand)]
    Vm(vm::Action),
    Completions(completions::Args),
    #[command(hide = true)]
    Man(man::Args),
}

impl Command {
    /// Parses the command line. Ends the process if that is wrong, or only asks for help.
    ///
    /// Building the table of all commands takes longer than starting a program, so `run` does not wait for it.
    pub(crate) fn of_this_process() -> Self {
        if std::env::args_os().nth(1).is_some_and(|word| word == "run") {
            let Run::Run(args) = OfRun::parse().command;
            return Self::Run(args);
        }
        let mut matches = table().get_matches_from(with_joined_json(std::env::args_os()));
        match Args::from_arg_matches_mut(&mut matches) {
            Ok(args) => args.command,
            Err(error) => error.format(&mut table()).exit(),
        }
    }

    pub(crate) fn run(self) -> CommandResult {
        match self {
            Self::Run(args) => run::run(args),
            Self::Branch(args) => branch::run(&args),
            Self::Status(args) => status::run(args),
            Self::Doctor(args) => doctor::run(args),
            Self::Setup(args) => setup::run(args),
            Self::Promote(args) => promote::run(&args),
            Self::Trace(args) => trace::run(&args),
            Self::Compare(args) => compare::run(&args),
            Self::Image(action) => image::run(&action),
            Self::Attach(args) => attach::run(&args),
            Self::Checkpoint(args) => checkpoint::run(&args),
            Self::Restore(args) => restore::run(&args),
            Self::Mark(args) => mark::run(&args),
            Self::Rollback(args) => mark::roll_back(&args),
            Self::Warm(args) => warm::run(&args),
            Self::Start(args) => warm::start(&args),
            Self::Serve(args) => serve::run(args),
            Self::Vm(action) => vm::run(&action),
            Self::Completions(args) => completions::run(&args),
            Self::Man(args) => man::run(&args),
        }
    }
}

/// Commands that take names or files, none or several. Their `--json` needs a `=` before its file: the next word is a name,
/// or a file that is read.
const WITH_NAMES: [&str; 3] = ["status", "setup", "compare"];

/// The table of all commands. Each `--json` may stand without its file.
fn table() -> clap::Command {
    fn json_to_stdout(command: clap::Command, has_names: bool) -> clap::Command {
        let arg = |arg: clap::Arg| match arg.get_id() == "json" {
            true => arg.num_args(0..=1).require_equals(has_names).default_missing_value("-"),
            false => arg,
        };
        command.mut_args(arg).mut_subcommands(|command| {
            let has_names = has_names || WITH_NAMES.contains(&command.get_name());
            json_to_stdout(command, has_names)
        })
    }
    json_to_stdout(Args::command(), false)
}

/// Joins the words `--json -`, which can mean nothing else, for [`WITH_NAMES`]. Those of another command, after `--`, stay.
fn with_joined_json(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    let mut is_ours = true;
    for word in words {
        is_ours &= word != "--";
        let has_names = joined.get(1).is_some_and(|name| WITH_NAMES.iter().any(|one| name == one));
        match joined.last_mut() {
            Some(last) if is_ours && has_names && last == "--json" && word == "-" => {
                last.push("=-")
            }
            _ => joined.push(word),
        }
    }
    joined
}

/// Advice to run a command, with the user that must run it.
pub(crate) fn advice(fix: &str) -> String {
    match fix.starts_with("sudo ") {
        true => format!("run: {fix}"),
        false => format!("as root run: {fix}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        table().debug_assert();
    }

    #[test]
    fn json_is_for_stdout_unless_a_file_is_named() {
        let file = |words: &[&str]| {
            let matches =
                table().try_get_matches_from([&["cowslip", "doctor"][..], words].concat());
            match Args::from_arg_matches(&matches.unwrap()).unwrap().command {
                Command::Doctor(args) => format!("{args:?}"),
                other => panic!("{other:?}"),
            }
        };
        for words in [&["--json"][..], &["--json", "--verbose"], &["--json", "-"], &["--json=-"]] {
            assert!(file(words).contains(r#"json: Some("-")"#), "{words:?}");
        }
        assert!(file(&["--json", "a"]).contains(r#"json: Some("a")"#));
        assert!(file(&["--verbose"]).contains("json: None"));
    }

    #[test]
    fn json_leaves_names_and_files_to_the_command() {
        for (words, told) in [
            (&["status", "--json", "redis"][..], r#""redis""#),
            (&["setup", "--undo", "--json", "redis"], r#""redis.service""#),
            (&["compare", "--json", "a", "b", "--", "c"], r#""a", "b""#),
            (&["compare", "a", "--json", "-", "--", "c"], r#""a""#),
        ] {
            let words = [&["cowslip"], words].concat().into_iter().map(OsString::from);
            let matches = table().try_get_matches_from(with_joined_json(words)).unwrap();
            let args = format!("{:?}", Args::from_arg_matches(&matches).unwrap().command);
            assert!(args.contains(r#"json: Some("-")"#) && args.contains(told), "{args}");
        }
    }
}
