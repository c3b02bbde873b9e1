//! `cowslip trace import`: perf's recording as a trace.

use std::path::Path;
use std::process::ExitCode;

use cowslip_report::{Progress, Stream};
use cowslip_trace::import::{Imported, import};

use super::args::ImportArgs;
use crate::exit::{self, CommandResult, Failure, USAGE};

pub(super) fn run(args: &ImportArgs) -> CommandResult {
    if args.output == Path::new("-") {
        return Err(Failure::new(USAGE, "a trace goes to a file: say --output FILE"));
    }
    let failed = |error| exit::io(format!("make {}", args.output.display()))(error);
    let mut output = Stream::open(&args.output).map_err(failed)?;
    let mut progress = Progress::brief();
    progress.phase(&format!("importing {}", args.file.display()));
    let imported = import(&args.file, &mut output, &mut |done, all| progress.set_bytes(done, all));
    progress.finish();
    let imported = imported.map_err(failed)?;
    output.finish().map_err(failed)?;
    print(args, &imported);
    Ok(ExitCode::SUCCESS)
}

fn print(args: &ImportArgs, imported: &Imported) {
    let Imported { header, totals, .. } = imported;
    errln!(
        "{}: {} events, {} of them page faults; {} lost",
        args.output.display(),
        totals.events,
        totals.faults,
        totals.lost
    );
    for (count, what) in [
        (imported.ignored, "records are about something else, or the same faults again"),
        (imported.unplaced, "mappings were put where perf did not record"),
        (imported.without_address, "faults have no address"),
        (imported.late_ns, "ns at most some events came late: they have younger ones' time"),
    ] {
        if count > 0 {
            errln!("  {count} {what}");
        }
    }
    for unseen in &header.unseen {
        errln!("  not seen: {unseen}");
    }
}
