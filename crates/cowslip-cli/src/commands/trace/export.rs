//! `cowslip trace export`: a trace as CSV or JSON Lines.

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use cowslip_report::{Progress, Stream};
use cowslip_trace::export::{Format, export};

use super::args::{ExportArgs, FormatArg};
use super::load::{cut_short, open, unreadable, warn};
use crate::exit::{self, CommandResult};

pub(super) fn run(args: &ExportArgs) -> CommandResult {
    let format = args.format.into();
    let failed = |error| exit::io(format!("export {}", args.file.display()))(error);
    let length = fs::metadata(&args.file).map_err(unreadable(&args.file))?.len();
    let mut reader = open(&args.file)?;
    let mut output = Stream::open(&args.output).map_err(failed)?;
    let mut progress = Progress::brief();
    progress.phase(&format!("exporting {}", args.file.display()));
    let exported =
        export(&mut reader, format, &mut output, &mut |bytes| progress.set_bytes(bytes, length))
            .and_then(|()| output.flush());
    progress.finish();
    match exported {
        // The reader has seen enough (`| head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        exported => exported.map_err(failed)?,
    }
    warn(&args.file, cut_short(&args.file, &reader)?.as_ref());
    output.finish().map_err(failed)?;
    let totals = reader.totals();
    if totals.lost > 0 {
        errln!("cowslip: {} events were lost when the trace was recorded", totals.lost);
    }
    Ok(ExitCode::SUCCESS)
}

impl From<FormatArg> for Format {
    fn from(arg: FormatArg) -> Self {
        match arg {
            FormatArg::Csv => Self::Csv,
            FormatArg::Jsonl => Self::JsonLines,
        }
    }
}
