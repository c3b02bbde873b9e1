//! The trace in the form that the page contains, as base64.
//!
//! ```text
//!  u32 LE   length of the tables
//!  zlib     JSON: the tables, and "columns": [[name, bytes], …]
//!  zlib …   the columns, in that order, each by itself
//! ```
//! Numbers have seven bits a byte. `page`, `bar_start` and `bar_from` are distances with the sign in the
//! lowest bit, `page` from the last fault of the same group; `time` is the distance from the fault before;
//! `low` is two bytes, `class` and `flags` one; latencies and stacks are stored plus one, 0 is none.

use std::collections::HashMap;
use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::{Value, json};

use super::dots::LOW_BITS;
use super::scene::{Bar, Scene};
use super::varint::Column;
use crate::attribute::FaultKind;
use crate::patterns::{self, Pattern, PatternName};

pub(super) fn pack(scene: &Scene) -> io::Result<String> {
    let bars = bar_columns(&scene.bars);
    let columns: Vec<_> = scene.dots.columns.iter().chain(&bars).collect();
    let mut tables = ZlibEncoder::new(Vec::new(), Compression::default());
    tables.write_all(&serde_json::to_vec(&self::tables(scene, &columns))?)?;
    let tables = tables.finish()?;
    let mut packed = u32::try_from(tables.len()).map_err(io::Error::other)?.to_le_bytes().to_vec();
    packed.extend(tables);
    columns.iter().for_each(|(_, column)| packed.extend(column));
    Ok(STANDARD.encode(packed))
}

fn bar_columns(bars: &[Bar]) -> Vec<(&'static str, Vec<u8>)> {
    let names =
        ["bar_start", "bar_pages", "bar_from", "bar_ns", "bar_space", "bar_group", "bar_offset"];
    let mut columns = names.map(|name| (name, Column::default()));
    let [start, pages, from, ns, space, group, offset] = &mut columns;
    for bar in bars {
        start.1.push_near(bar.start >> LOW_BITS);
        pages.1.push((bar.end >> LOW_BITS).saturating_sub(bar.start >> LOW_BITS));
        from.1.push_near(bar.from_ns);
        ns.1.push(bar.to_ns.saturating_sub(bar.from_ns));
        space.1.push(bar.space.into());
        group.1.push(bar.group.into());
        offset.1.push(bar.offset_bytes >> LOW_BITS);
    }
    columns.map(|(name, column)| (name, column.finish())).into()
}

fn tables(scene: &Scene, columns: &[&(&'static str, Vec<u8>)]) -> Value {
    let sizes = columns.iter().map(|(name, column)| (name, column.len()));
    let spaces = scene.spaces.iter().map(|space| {
        let page = |address: u64| address >> LOW_BITS;
        let bands = space.bands.iter().map(|band| (page(band.start), page(band.end), band.height));
        json!({
            "label": space.label,
            "is_drawn": space.is_drawn,
            "bands": bands.collect::<Vec<_>>(),
            "names": space.names,
        })
    });
    json!({
        "columns": sizes.collect::<Vec<_>>(),
        "fault_count": scene.dots.count,
        "bar_count": scene.bars.len(),
        "duration_ns": scene.duration_ns,
        "period": scene.analysis.sampling_period,
        "kinds": FaultKind::ALL.map(FaultKind::words),
        "spaces": spaces.collect::<Vec<_>>(),
        "groups": scene.groups.rows,
        "threads": threads(scene),
        "stacks": scene.frames.stacks,
        "frames": scene.frames.names,
        "patterns": patterns(scene),
        "losses": scene.losses,
    })
}

fn threads(scene: &Scene) -> Vec<Value> {
    let known = scene.analysis.threads.iter();
    let names: HashMap<_, _> =
        known.map(|thread| ((thread.pid, thread.tid), thread.name.clone())).collect();
    let thread = |&(pid, tid): &(u32, u32)| json!({ "pid": pid, "tid": tid, "name": names.get(&(pid, tid)) });
    scene.threads.iter().map(thread).collect()
}

/// The patterns, with the means to recognise their faults.
fn patterns(scene: &Scene) -> Vec<Value> {
    let pattern = |pattern: &Pattern| {
        let groups = &scene.analysis.groups;
        let identity = pattern.identity.as_ref();
        let place = identity
            .and_then(|identity| groups.iter().position(|group| group.identity == *identity));
        json!({
            "sentence": pattern.sentence,
            "advice": pattern.advice,
            "group": place.map(|place| scene.groups.number(place)),
            "kind": kind_of(pattern.name).map(|kind| kind as usize),
            "is_of_arrivals": is_of_arrivals(pattern.name),
            "is_of_kernel": pattern.name == PatternName::KernelCopies,
        })
    };
    patterns::find(&scene.analysis).iter().map(pattern).collect()
}

/// True if a pattern is about pages that come.
fn is_of_arrivals(name: PatternName) -> bool {
    use PatternName::{Churn, Misaligned, NotHuge, OncePerMap, StackGrowth, Staircase};
    matches!(name, Staircase | OncePerMap | NotHuge | Misaligned | Churn | StackGrowth)
}

/// The kind of fault that a pattern is about, if it is about one.
fn kind_of(name: PatternName) -> Option<FaultKind> {
    match name {
        PatternName::CowStorm => Some(FaultKind::CowAfterFork),
        PatternName::Purging => Some(FaultKind::Refault),
        PatternName::ColdFile => Some(FaultKind::FileRead),
        PatternName::FileCopies => Some(FaultKind::FileCopy),
        PatternName::NumaHints => Some(FaultKind::Repeated),
        _ => None,
    }
}
