//! `cowslip trace html` and `svg`: a trace drawn.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::ValueEnum;
use cowslip_report::{Progress, sink};
use cowslip_trace::cost::FaultCost;
use cowslip_trace::picture::{Picture, Theme};

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

#[derive(clap::Args, Debug)]
pub(crate) struct StillArgs {
    /// The trace
    file: PathBuf,
    /// Where the picture goes, or `-` for stdout [default: FILE with .svg]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The background
    #[arg(long, value_enum, default_value_t = ThemeArg::Light)]
    theme: ThemeArg,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum ThemeArg {
    /// Dark on light
    Light,
    /// Light on dark
    Dark,
}

impl From<ThemeArg> for Theme {
    fn from(arg: ThemeArg) -> Self {
        match arg {
            ThemeArg::Light => Self::Light,
            ThemeArg::Dark => Self::Dark,
        }
    }
}

pub(super) fn html(args: &HtmlArgs) -> CommandResult {
    let render = |picture: &Picture| Ok(picture.html()?.into_bytes());
    let output = args.output.as_deref();
    if args.open && output == Some(Path::new("-")) {
        return Err(Failure::new(exit::USAGE, "--open shows a file; name one with --output"));
    }
    let page = draw(&args.file, output, "html", render)?;
    if args.open { open_in_browser(&page) } else { Ok(ExitCode::SUCCESS) }
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

pub(super) fn svg(args: &StillArgs) -> CommandResult {
    draw(&args.file, args.output.as_deref(), "svg", |picture| {
        Ok(picture.svg(args.theme.into()).into_bytes())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Draws the trace, and returns where that is.
fn draw(
    file: &Path,
    output: Option<&Path>,
    extension: &str,
    render: impl FnOnce(&Picture) -> io::Result<Vec<u8>>,
) -> Result<PathBuf, Failure> {
    let output = output.map_or_else(|| file.with_extension(extension), Path::to_owned);
    let mut progress = Progress::brief();
    progress.phase(&format!("reading {}", file.display()));
    let mut reader = open(file)?;
    let cost = FaultCost::of(reader.header()).or_else(|| FaultCost::measure().ok());
    let picture = Picture::read(&mut reader, cost).map_err(unreadable(file))?;
    warn(file, cut_short(file, &reader)?.as_ref());
    progress.phase("drawing");
    let drawn = render(&picture).map_err(exit::io("draw the trace"))?;
    progress.finish();
    sink::write_bytes(&output, &drawn).map_err(exit::io("write the picture"))?;
    if output != Path::new("-") {
        errln!("{}", output.display());
    }
    Ok(output)
}
