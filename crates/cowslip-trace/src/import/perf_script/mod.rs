//! Reads the text of `perf script`.

mod line;

use std::io::{self, BufRead, Read};

use super::record::{At, Fault, Record, Source, Take};
use crate::model::Header;
use line::Line;

/// From here on addresses are the kernel's.
const KERNEL: u64 = 1 << 63;
/// Longer lines are not perf's.
const LINE_MOST_BYTES: u64 = 65_536;

/// Passes every line to `take`, and stores the facts about the machine from comments in `header`.
pub(super) fn read(
    mut input: impl BufRead,
    header: &mut Header,
    take: &mut Take<'_>,
) -> io::Result<()> {
    header.sources.push("import:perf-script".into());
    header.clock = "perf".into();
    let mut bytes = Vec::new();
    // A fault is complete once it is known if a call stack follows.
    let mut pending: Option<(At, Fault<'static>)> = None;
    let mut innermost = None;
    loop {
        bytes.clear();
        let is_end = (&mut input).take(LINE_MOST_BYTES).read_until(b'\n', &mut bytes)? == 0;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        if !is_end && text.starts_with('\t') {
            innermost = innermost.or(line::frame(text));
            continue;
        }
        let innermost = innermost.take();
        if let Some((at, fault)) = pending.take() {
            take(at, Record::Fault(complete(fault, innermost)))?;
        }
        if is_end {
            return Ok(());
        }
        match line::parse(text) {
            _ if text.is_empty() => {}
            _ if text.starts_with('#') => comment(text, header),
            Some((at, Line::Fault(fault))) => pending = Some((at, fault)),
            Some((at, Line::Other(record))) => take(at, record)?,
            None => take(At::default(), Record::Other)?,
        }
    }
}

/// The first of two numbers is the address; a single one is the address only if a call stack gives the
/// instruction. In call stacks, perf prints each frame's place in its file, not in memory: only those in the
/// kernel are useful.
fn complete(fault: Fault<'static>, innermost: Option<u64>) -> Fault<'static> {
    let is_exception = matches!(fault.source, Source::Exception { .. });
    match (fault.ip, innermost) {
        (None, Some(frame)) => {
            let ip = Some(frame).filter(|&frame| frame >= KERNEL);
            Fault { ip, has_unusable_stack: true, ..fault }
        }
        (None, None) if !is_exception => Fault { address: None, ip: fault.address, ..fault },
        _ => fault,
    }
}

/// `perf script --header` describes the machine.
fn comment(text: &str, header: &mut Header) {
    let Some((name, value)) = text.trim_start_matches('#').split_once(':') else { return };
    let value = value.trim();
    let machine = &mut header.machine;
    match name.trim() {
        "os release" => value.clone_into(&mut machine.kernel_release),
        "arch" => value.clone_into(&mut machine.architecture),
        "cpudesc" => value.clone_into(&mut machine.cpu_model),
        "nrcpus online" => machine.cpus = value.parse().unwrap_or_default(),
        "total memory" => {
            let kilobytes = value.strip_suffix("kB").and_then(|it| it.trim().parse::<u64>().ok());
            machine.memory_bytes = kilobytes.unwrap_or_default().saturating_mul(1024);
        }
        "cmdline" => header.command = value.split_whitespace().map(Into::into).collect(),
        _ => {}
    }
}
