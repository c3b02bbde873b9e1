//! One line of `perf script`: `COMM PID/TID [CPU] SECONDS: PERIOD EVENT: …`, with some parts optional.

use cowslip_sys::units::VirtRange;

use crate::import::record::{At, Edge, Fault, Record, Source};
use crate::model::Map;

/// The width of the addresses that perf prints.
const WIDTH: usize = 16;
const MAP_SHARED: u32 = 1;
const MAP_PRIVATE: u32 = 2;

/// The meaning of a line.
pub(super) enum Line<'a> {
    /// A fault; its call stack, if any, is on the following lines.
    Fault(Fault<'static>),
    Other(Record<'a>),
}

/// The address at the beginning of a line of a call stack.
pub(super) fn frame(text: &str) -> Option<u64> {
    u64::from_str_radix(text.split_whitespace().next()?, 16).ok()
}

/// A line that is no frame; `None` if it is not one of perf's.
pub(super) fn parse(text: &str) -> Option<(At, Line<'_>)> {
    let (before, time_ns, after) = split_at_time(text)?;
    let mut place = before.split_whitespace().rev().filter(|word| !word.starts_with('['));
    let task = place.next()?;
    let (pid, tid) = match task.split_once('/') {
        Some((pid, tid)) => (Some(pid.parse().ok()?), tid.parse().ok()?),
        None => (None, task.parse().ok()?),
    };
    let at = At { time_ns: Some(time_ns), pid, tid };
    if after.starts_with("PERF_RECORD_") {
        let (at, record) = self::record(at, after).unwrap_or((at, Record::Other));
        return Some((at, Line::Other(record)));
    }
    let (first, rest) = after.split_once(char::is_whitespace)?;
    let (period, (event, rest)) = match first.parse() {
        Ok(period) => (Some(period), rest.trim_start().split_once(": ")?),
        Err(_) => (None, after.split_once(": ")?),
    };
    let record = match (Source::named(event), Edge::named(event)) {
        (Some(source), _) => return Some((at, Line::Fault(fault(source, period, rest)))),
        (_, Some(Edge::Enter(name))) => {
            let arguments: Option<Vec<u64>> = rest.split(", ").map(argument).collect();
            let arguments = arguments?;
            Record::Enter(name.call(|i| arguments.get(i).copied().unwrap_or_default()))
        }
        (_, Some(Edge::Leave)) => Record::Leave { result: hex(rest.trim())? },
        _ => Record::Other,
    };
    Some((at, Line::Other(record)))
}

/// The part before the time, the time in nanoseconds, and the part after it.
fn split_at_time(text: &str) -> Option<(&str, u64, &str)> {
    text.match_indices(": ").find_map(|(end, _)| {
        let begin = text[..end].rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let (seconds, fraction) = text[begin..end].split_once('.')?;
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if fraction.len() > 9 || !is_digits(seconds) || !is_digits(fraction) {
            return None;
        }
        let scale = 10_u64.pow(9 - fraction.len() as u32);
        let fraction_ns = fraction.parse::<u64>().ok()?.checked_mul(scale)?;
        let seconds_ns = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
        Some((&text[..begin], seconds_ns.checked_add(fraction_ns)?, text[end + 2..].trim_start()))
    })
}

/// A single number is stored as the address.
fn fault(source: Source, period: Option<u64>, rest: &str) -> Fault<'static> {
    let (address, ip, error_code) = match source {
        Source::Exception { .. } => exception(rest),
        _ => {
            let mut numbers = numbers(rest);
            (numbers.next(), numbers.next(), None)
        }
    };
    Fault {
        source,
        address,
        ip,
        error_code,
        in_user_mode: None,
        frames: &[],
        has_unusable_stack: false,
        period,
    }
}

/// The numbers with the width of perf's addresses. Symbols beside them may look like numbers too.
fn numbers(text: &str) -> impl Iterator<Item = u64> {
    // The space before the first one was cut off with the event's name.
    let before = |at: usize| text[..at].bytes().rev().take_while(|&byte| byte == b' ').count();
    let words = text.split(' ').scan(0, |at, word| {
        let begin = *at;
        *at += word.len() + 1;
        Some((begin, word))
    });
    let words = words.filter(|(_, word)| !word.is_empty() && word.len() <= WIDTH);
    words.filter_map(move |(begin, word)| {
        let is_wide = before(begin) + word.len() >= WIDTH;
        is_wide.then(|| u64::from_str_radix(word, 16).ok()).flatten()
    })
}

/// `address=0x… ip=0x… error_code=0x…`; an address printed as a symbol is left out.
fn exception(rest: &str) -> (Option<u64>, Option<u64>, Option<u64>) {
    let field =
        |name| rest.split_whitespace().find_map(|word| word.strip_prefix(name)).and_then(hex);
    let [address, ip] = [field("address="), field("ip=")];
    // perf before 5.x left the `f` of the kernel's `%pf` after each.
    let is_no_address = |number: u64| number >> 47 != 0 && number >> 63 == 0 && number & 15 == 15;
    let shift =
        if address.is_some_and(is_no_address) || ip.is_some_and(is_no_address) { 4 } else { 0 };
    (address.map(|it| it >> shift), ip.map(|it| it >> shift), field("error_code="))
}

fn record(at: At, text: &str) -> Option<(At, Record<'_>)> {
    let (name, rest) = text.split_at(text.find([' ', ':', '('])?);
    match name {
        "PERF_RECORD_MMAP" | "PERF_RECORD_MMAP2" => {
            let (task, rest) = rest.trim_start().split_once(": [")?;
            Some((of_task(at, task, '/')?, Record::Map(map(rest)?)))
        }
        "PERF_RECORD_COMM" => {
            let (exec, rest) = rest.split_once(": ")?;
            let (name, task) = rest.rsplit_once(':')?;
            let record = Record::Comm { name, is_exec: exec.trim() == "exec" };
            Some((of_task(at, task, '/')?, record))
        }
        "PERF_RECORD_FORK" => {
            let (child, parent) = rest.split_once("):(")?;
            let child = of_task(at, child.trim_start_matches('('), ':')?;
            let record = Record::Fork { child_pid: child.pid?, child_tid: child.tid };
            Some((of_task(at, parent.trim_end_matches(')'), ':')?, record))
        }
        "PERF_RECORD_EXIT" => {
            let (task, _) = rest.split_once("):(")?;
            Some((of_task(at, task.trim_start_matches('('), ':')?, Record::Exit))
        }
        "PERF_RECORD_LOST" | "PERF_RECORD_LOST_SAMPLES" => {
            let count = rest.split_whitespace().last()?.parse().ok()?;
            Some((at, Record::Lost { count }))
        }
        _ => None,
    }
}

/// The kernel's own mappings belong to process -1, hence `None`.
fn of_task(at: At, task: &str, separator: char) -> Option<At> {
    let (pid, tid) = task.split_once(separator)?;
    Some(At { pid: Some(pid.parse().ok()?), tid: tid.parse().ok()?, ..at })
}

/// `0xADDRESS(0xLENGTH) @ OFFSET …]: PROTECTION PATH`
fn map(text: &str) -> Option<Map> {
    let (address, rest) = text.split_once('(')?;
    let (length, rest) = rest.split_once(") @ ")?;
    let (file, rest) = rest.split_once("]: ")?;
    let (protection, path) = rest.split_once(' ').unwrap_or((rest, ""));
    let (address, length) = (hex(address)?, hex(length)?);
    address.checked_add(length)?;
    let is_anonymous = path.is_empty() || path == "//anon";
    // Offset, device, number and generation; after only an offset, or a build id, there is no number.
    let mut facts = file.split(' ');
    let offset = facts.next()?;
    let has_device = facts.next().is_some_and(|device| device.contains(':'));
    let inode = facts.next().filter(|_| has_device).and_then(|inode| inode.parse().ok());
    let bit = |letter, bit| if protection.contains(letter) { bit } else { 0 };
    Some(Map {
        range: VirtRange::new(address as usize, length as usize),
        protection: bit('r', 1) | bit('w', 2) | bit('x', 4),
        flags: bit('s', MAP_SHARED) | bit('p', MAP_PRIVATE),
        offset_bytes: if is_anonymous { 0 } else { hex(offset).or(offset.parse().ok())? },
        inode: inode.unwrap_or(0),
        name: (!is_anonymous).then(|| path.into()),
        is_old: false,
        stack: None,
    })
}

/// The value of `name: 0x…`.
fn argument(text: &str) -> Option<u64> {
    hex(text.rsplit_once(": ")?.1.trim())
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}
