//! The actions of a `cowslip promote` session, as a table and as JSON.

use std::path::Path;

use cowslip::units::ByteCount;
use cowslip_promote::session::Session;
use cowslip_promote::{Coverage, LazyFreeSource, Reason, SizeChange, SizeChoice, percent};
use cowslip_sys::procfs;

use super::args::PromoteArgs;
use crate::exit::{self, Failure};
use cowslip_report::{self as output, sink, text, units};

pub(super) fn deliver(session: &Session, args: &PromoteArgs) -> Result<(), Failure> {
    write_json(session, args)?;
    if args.json.as_deref() != Some(Path::new("-")) {
        sink::print(&table(session, args.dry_run)).map_err(exit::io("print the table"))?;
    }
    Ok(())
}

/// The JSON alone, if it is wanted.
pub(super) fn write_json(session: &Session, args: &PromoteArgs) -> Result<(), Failure> {
    let Some(file) = &args.json else { return Ok(()) };
    let whole = session.to_json(args.dry_run, args.coverage);
    output::json::write(&whole, file).map_err(exit::io("write the report"))
}

fn table(session: &Session, is_dry_run: bool) -> String {
    let heads = [
        "process",
        "huge before",
        "huge after",
        "of what fits",
        "promoted",
        "split",
        "freed",
        "longest stall",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for (process, tally) in &session.tally().processes {
        let share = |coverage: Option<Coverage>| {
            coverage.map_or("unknown".to_owned(), |coverage| coverage.to_string())
        };
        let ended = if tally.has_ended { " (ended)" } else { "" };
        let would = |reason| tally.regions.get(&reason).copied().unwrap_or(0);
        let (promoted, split) = if is_dry_run {
            (would(Reason::Full), would(Reason::Sparse))
        } else {
            (tally.promotions, tally.splits)
        };
        rows.push(vec![
            format!("{} ({})", text::clip(&tally.name), process.pid),
            share(tally.before),
            share(tally.after) + ended,
            tally.after.map_or("unknown".to_owned(), |coverage| percent(coverage.fitting_ratio())),
            promoted.to_string(),
            split.to_string(),
            ByteCount(tally.freed_bytes).to_string(),
            units::human(tally.longest_stall_ns as f64, "ns"),
        ]);
    }
    let mut lines = text::align(&rows);
    if is_dry_run {
        lines.push(String::new());
        lines.push("  a dry run: promoted and split are what would be done now".to_owned());
    }
    lines.push(String::new());
    lines.push("  regions of 2 MiB at the last look:".to_owned());
    for (reason, count) in reasons(session) {
        lines.push(format!("  {count:>8}  {reason}: {}", told(reason, is_dry_run)));
    }
    lines.extend(memory_of_files(session));
    lines.extend(unaligned(session).map(|sentence| format!("  {sentence}")));
    lines.extend(lazily_freed(session));
    lines.extend(session.page_size().map(|choice| format!("  {}", page_size(choice))));
    let cpu = units::human(session.tally().look_cpu_ns as f64, "ns");
    let looks = text::count(session.tally().looks as usize, "look");
    lines.push(format!("  {looks} took {cpu} of processor time"));
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The size of pages at faults that was chosen, and why.
pub(super) fn page_size(choice: &SizeChoice) -> String {
    match &choice.change {
        Some(SizeChange { page_bytes, before, ours }) => format!(
            "until this ends, {}/enabled is {} (was {}): {}",
            procfs::size_folder(*page_bytes),
            ours.word(),
            before.word(),
            choice.why
        ),
        None => format!("the size of pages at faults stays as it is: {}", choice.why),
    }
}

/// The huge parts of shared memory and of text, if there are any; each process counts the pages that it maps.
fn memory_of_files(session: &Session) -> impl Iterator<Item = String> {
    let coverage = session.tally().coverage(|process| process.after);
    let kinds = [
        ("shared memory", coverage.shmem_huge_bytes, coverage.shmem_bytes),
        ("text", coverage.text_huge_bytes, coverage.text_bytes),
    ];
    kinds.into_iter().filter(|(.., bytes)| *bytes > 0).map(|(kind, huge, bytes)| {
        format!("  {} of {} of {kind} are huge", ByteCount(huge), ByteCount(bytes))
    })
}

/// The size of shared memory that cannot be huge at its addresses, and what makes the kernel choose others. It chooses
/// when memory is mapped, by the settings of that moment.
pub(super) fn unaligned(session: &Session) -> Option<String> {
    let bytes = session.tally().coverage(|process| process.after).shmem_unaligned_bytes;
    (bytes > 0).then(|| {
        format!(
            "{} of shared memory cannot be huge at its addresses: start the program again with \
             transparent_hugepage/shmem_enabled (of a tmpfs, its mount option huge) at advise",
            ByteCount(bytes)
        )
    })
}

/// Memory that the programs have freed lazily and that is still present, if there is any.
fn lazily_freed(session: &Session) -> Option<String> {
    let all =
        || session.tally().processes.values().filter(|process| process.lazily_freed_bytes > 0);
    let bytes = all().map(|process| process.lazily_freed_bytes).sum();
    let guess = match all().any(|process| process.lazy_free_source == LazyFreeSource::Mappings) {
        true => {
            "; which pages is told to root alone, so that no page of such a mapping counts as used"
        }
        false => "",
    };
    (bytes > 0)
        .then(|| format!("  {} lazily freed (MADV_FREE), not in use{guess}", ByteCount(bytes)))
}

fn told(reason: Reason, is_dry_run: bool) -> String {
    let sentence = reason.sentence();
    match reason.action() {
        Some(_) if is_dry_run => format!("would be {sentence}"),
        Some(_) => format!("to be {sentence}"),
        None => sentence.into(),
    }
}

fn reasons(session: &Session) -> Vec<(Reason, u64)> {
    let mut sums = std::collections::BTreeMap::new();
    for (reason, count) in session.tally().processes.values().flat_map(|process| &process.regions) {
        *sums.entry(*reason).or_insert(0) += count;
    }
    sums.into_iter().collect()
}
