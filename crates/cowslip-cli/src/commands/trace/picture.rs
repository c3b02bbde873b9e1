//! `cowslip trace html`: a trace drawn.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use cowslip_report::{Progress, sink};
use cowslip_trace::cost::FaultCost;
use cowslip_trace::picture::Picture;

use super::load::{cut_short, open, unreadable, warn};
use crate::exit::{self, CommandResult, Failure};

/// Draw a trace as one page that needs nothing but a browser: zoom, hover, brush, tables
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip trace html build.trace -o build.html\n  \
    cowslip trace html build.trace --open")]
pub(crate) struct HtmlArgs {
    /// The trace
    file: PathBuf,
    /// Where the page goes, or `-` for stdout [default: FILE with .html]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show the page in the browser (`xdg-open`)
    #[arg(long)]
    open: bool,
}

pub(super) fn run(args: &HtmlArgs) -> CommandResult {
    let file = &args.file;
    let output = args.output.clone().unwrap_or_else(|| file.with_extension("html"));
    if args.open && output == Path::new("-") {
        return Err(Failure::new(exit::USAGE, "--open shows a file; name one with --output"));
    }
    let mut progress = Progress::brief();
    progress.phase(&format!("reading {}", file.display()));
    let mut reader = open(file)?;
    let cost = FaultCost::from_header(reader.header()).or_else(|| FaultCost::measure().ok());
    let picture = Picture::read(&mut reader, cost).map_err(unreadable(file))?;
    warn(file, cut_short(file, &reader)?.as_ref());
    progress.phase("drawing");
    let drawn = picture.html().map_err(exit::io("draw the trace"))?;
    progress.finish();
    sink::write_bytes(&output, drawn.as_bytes()).map_err(exit::io("write the picture"))?;
    if output != Path::new("-") {
        errln!("{}", output.display());
    }
    if args.open { open_in_browser(&output) } else { Ok(ExitCode::SUCCESS) }
}

fn open_in_browser(page: &Path) -> CommandResult {
    let quiet = Stdio::null;
    let mut opener = Command::new("xdg-open");
    opener.arg(page).stdin(quiet()).stdout(quiet()).stderr(quiet());
    let failed = |why: String| {
        let advice = format!("open {} in a browser", page.display());
        Failure::new(exit::FAILED, format!("xdg-open: {why}; {advice}"))
    };
    match opener.status() {
        Ok(status) if status.success() => Ok(ExitCode::SUCCESS),
        Ok(status) => Err(failed(status.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}
