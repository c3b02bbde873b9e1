//! `--explain`: how one region is treated, and why.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cowslip::units::CHUNK_BYTES;
use cowslip_promote::session::Session;
use cowslip_promote::{
    Decision, LazyFreeSource, Look, ProcessLook, REGION_PAGES, Reason, Region, RegionKind,
};
use serde_json::{Value, json};

use crate::exit::{self, CommandResult, Failure, NO};
use cowslip_report::{self as output, sink, text};

/// Looks twice, to see memory that was released in between, and acts on nothing.
pub(super) fn run(session: &mut Session, address: u64, file: Option<&Path>) -> CommandResult {
    session.look(u64::MAX)?;
    session.wait(Duration::from_millis(session.plan().settings.interval_ms))?;
    let round = session.look(u64::MAX)?;
    let found = find(&round.look, &round.decisions, address);
    if found.is_empty() {
        let why = format!(
            "{address:#x}: no private anonymous memory, and none of an arena, is in use there"
        );
        return Err(Failure::new(NO, why));
    }
    if let Some(file) = file {
        let all: Vec<Value> = found.iter().map(Found::to_json).collect();
        let whole = json!({"schema": "cowslip.promote.explain/1", "regions": all});
        output::json::write(&whole, file).map_err(exit::io("write the explanation"))?;
    }
    if file != Some(Path::new("-")) {
        let lines: String = found.iter().map(Found::to_text).collect();
        sink::print(&lines).map_err(exit::io("print the explanation"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Only root can see the frames.
const GUESS: &str = "  an upper bound for the whole mapping: only root sees lazily freed pages (/proc/kpageflags)\n";

struct Found<'a> {
    process: &'a ProcessLook,
    decision: &'a Decision,
    region: &'a Region,
}

fn find<'a>(look: &'a Look, decisions: &'a [Decision], address: u64) -> Vec<Found<'a>> {
    let start = address & !(CHUNK_BYTES as u64 - 1);
    let mut found = Vec::new();
    for decision in decisions.iter().filter(|decision| decision.address == start) {
        let process = look.processes.iter().find(|process| process.process == decision.process);
        let Some(process) = process else { continue };
        let region = process.regions.iter().find(|region| region.address == start);
        found.extend(region.map(|region| Found { process, decision, region }));
    }
    found
}

impl Found<'_> {
    fn to_json(&self) -> Value {
        json!({
            "pid": self.decision.process.pid,
            "name": self.process.name,
            "region": self.region,
            "lazy_free_source": self.process.lazy_free_source,
            "reason": self.decision.reason,
            "sentence": self.decision.reason.sentence(),
        })
    }

    fn to_text(&self) -> String {
        let pid = self.decision.process.pid;
        let (facts, why) = (facts(self.region), why(self.decision.reason));
        let name = text::printable(&self.process.name);
        let guess = match self.process.lazy_free_source {
            LazyFreeSource::Mappings if self.region.lazily_freed_pages > 0 => GUESS,
            _ => "",
        };
        format!("{name} ({pid}), 2 MiB at {:#x}\n  {facts}\n{guess}  {why}\n", self.region.address)
    }
}

/// The name and the sentence of a reason.
pub(super) fn why(reason: Reason) -> String {
    let would = if reason.action().is_some() { "to be " } else { "" };
    format!("{reason}: {would}{}", reason.sentence())
}

/// A region in numbers.
pub(super) fn facts(region: &Region) -> String {
    let of = |pages: u16| format!("{pages} of {REGION_PAGES} pages");
    let mut facts = vec![if region.is_huge {
        "one huge page".to_owned()
    } else {
        let used = region.used_pages();
        format!("{} in use ({} %)", of(used), u32::from(used) * 100 / u32::from(REGION_PAGES))
    }];
    match region.kind {
        RegionKind::Private => {}
        RegionKind::Arena => facts.push("of an arena".to_owned()),
        RegionKind::Text => facts.push("of text".to_owned()),
        RegionKind::Shmem => facts.push("of shared memory".to_owned()),
        RegionKind::FrozenArena => facts.push("of an arena that is frozen".to_owned()),
    }
    if let Some(pages) = region.nonzero_pages {
        facts.push(format!("{} hold anything but zeroes", of(pages)));
    }
    if region.is_partially_mapped {
        facts.push("a huge page is behind it".to_owned());
    }
    for (pages, what) in [
        (region.lazily_freed_pages, "lazily freed"),
        (region.zero_pages, "only read"),
        (region.swapped_pages, "in swap"),
        (region.shared_pages, "shared with another process"),
        (region.merged_pages, "merged with equal pages (KSM)"),
    ] {
        if pages > 0 {
            facts.push(format!("{pages} {what}"));
        }
    }
    if let Some(heat) = region.heat_percent {
        facts.push(format!("accessed lately: {heat} %"));
    }
    facts.join(", ")
}
