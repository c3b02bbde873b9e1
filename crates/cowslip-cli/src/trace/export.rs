//! `cowslip trace export`

use std::fs::File;
use std::io::{self, BufReader};
use std::process::ExitCode;

use cowslip_trace::export::{Format, export};
use cowslip_trace::file::Reader;

use super::args::{ExportArgs, FormatArg};
use crate::exit::{self, Answer, Failure};
use crate::output::progress::Progress;
use crate::output::stream::Stream;

pub(super) fn run(args: &ExportArgs) -> Answer {
    let format = format(args.format)?;
    let failed = |error| exit::io(format!("export {}", args.file.display()))(error);
    let file = File::open(&args.file).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let mut reader = Reader::new(BufReader::new(file)).map_err(failed)?;
    let mut output = Stream::open(&args.output).map_err(failed)?;
    let mut progress = Progress::new();
    progress.phase(&format!("exporting {}", args.file.display()));
    let exported =
        export(&mut reader, format, &mut output, &mut |bytes| progress.set_bytes(bytes, length))
            .and_then(|()| output.finish());
    progress.finish();
    match exported {
        // Whoever reads has seen enough (`| head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        exported => exported.map_err(failed)?,
    }
    let totals = reader.totals();
    if totals.lost > 0 {
        eprintln!("cowslip: {} events were lost when the trace was recorded", totals.lost);
    }
    if reader.is_cut_short() {
        eprintln!("cowslip: the trace is cut short: its end was never written");
    }
    Ok(ExitCode::SUCCESS)
}

fn format(arg: FormatArg) -> Result<Format, Failure> {
    match arg {
        FormatArg::Csv => Ok(Format::Csv),
        FormatArg::Jsonl => Ok(Format::JsonLines),
        FormatArg::Folded => Ok(Format::Folded),
        #[cfg(feature = "parquet")]
        FormatArg::Parquet => Ok(Format::Parquet),
        #[cfg(not(feature = "parquet"))]
        FormatArg::Parquet => Err(Failure::new(
            exit::UNSUPPORTED,
            "this cowslip was built without Parquet: cargo install cowslip-cli --features parquet",
        )),
    }
}
