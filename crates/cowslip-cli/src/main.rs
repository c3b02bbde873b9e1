//! The `cowslip` command.

#[macro_use]
mod lines;

mod args;
mod bench;
mod commands;
mod compare;
mod demo;
mod exit;
mod numbers;
mod output;
mod restoring;
mod trace;

use std::process::ExitCode;

fn main() -> ExitCode {
    let answer = match args::Args::of_this_process().command {
        args::Command::Run(args) => commands::run::run(args),
        args::Command::Status(args) => commands::status::run(args),
        args::Command::Doctor(args) => commands::doctor::run(args),
        args::Command::Demo(args) => commands::demo::run(args),
        args::Command::Bench(args::Bench::Cow(args)) => commands::bench::cow(&args),
        args::Command::Bench(args::Bench::Fork(args)) => commands::bench::fork(&args),
        args::Command::Bench(args::Bench::Restore(args)) => commands::bench::restore(&args),
        args::Command::Bench(args::Bench::Bloat(args)) => commands::bench::bloat(&args),
        args::Command::Bench(args::Bench::BloatProcess) => bench::bloat::process(),
        args::Command::Bench(args::Bench::Trace(args)) => commands::bench::trace(&args),
        args::Command::Bench(args::Bench::RestoreProcess(args)) => bench::restore::process(&args),
        args::Command::Restore(args) => commands::restore::run(&args),
        args::Command::Promote(args) => commands::promote::run(&args),
        args::Command::Trace(args) => trace::run(&args),
        args::Command::Compare(args) => compare::run(&args),
        args::Command::Record(args) => compare::record(&args),
        args::Command::Image(args::Image::Info(args)) => commands::image::info(&args),
        args::Command::Image(args::Image::Verify(args)) => commands::image::verify(&args),
        args::Command::Image(args::Image::Diff(args)) => commands::image::diff(&args),
        args::Command::Image(args::Image::Merge(args)) => commands::image::merge(&args),
    };
    match answer {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
