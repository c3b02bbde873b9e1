//! The trace as the page carries it: zlib over JSON tables and columns of small numbers, as base64.
//!
//! ```text
//!  u32 LE   length of the JSON
//!  JSON     tables, and "columns": [[name, bytes], …]
//!  …        the columns, in that order
//! ```
//! Seven bits a byte; `page`, `bar_start` and `bar_from` are distances with the sign in the lowest bit, `page`
//! from the last fault of the same group; `time` is the distance from the fault before; `low` is two bytes,
//! `class` and `flags` one; latencies and stacks are one more than they are, 0 is none.

use std::collections::HashMap;
use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::{Value, json};

use super::scene::{Bar, Dot, Scene};
use super::varint::Column;
use crate::attribute::Kind;
use crate::model::{Access, Fault, Severity};
use crate::patterns::{Pattern, PatternName};

const LOW_BITS: u32 = 12;

pub(super) fn pack(scene: &Scene<'_>) -> io::Result<String> {
    let mut columns = fault_columns(scene);
    columns.extend(bar_columns(&scene.bars));
    let tables = serde_json::to_vec(&tables(scene, &columns))?;
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&u32::try_from(tables.len()).map_err(io::Error::other)?.to_le_bytes())?;
    packed.write_all(&tables)?;
    for (_, column) in &columns {
        packed.write_all(column.bytes())?;
    }
    Ok(STANDARD.encode(packed.finish()?))
}

fn fault_columns(scene: &Scene<'_>) -> Vec<(&'static str, Column)> {
    let names = [
        "time", "space", "thread", "group", "page", "low", "class", "flags", "latency", "stack",
        "ip",
    ];
    let mut columns = names.map(|name| (name, Column::default()));
    let [time, space, thread, group, page, low, class, flags, latency, stack, ip] = &mut columns;
    let mut last_pages = vec![0; scene.groups.rows.len()];
    let mut last_ns = 0;
    for dot in &scene.dots {
        let fault = &dot.fault;
        let group_number = scene.groups.of_mapping(dot.mapping);
        time.1.push(dot.time_ns - last_ns);
        last_ns = dot.time_ns;
        space.1.push(dot.space.into());
        thread.1.push(dot.thread.into());
        group.1.push(group_number.into());
        let last_page = &mut last_pages[group_number as usize];
        page.1.push_from(*last_page, fault.address >> LOW_BITS);
        *last_page = fault.address >> LOW_BITS;
        low.1.push_byte(fault.address as u8);
        low.1.push_byte((fault.address >> 8) as u8 & 0xf);
        class.1.push_byte(class_of(dot));
        flags.1.push_byte(bits(fault));
        latency.1.push(fault.latency_ns.map_or(0, |ns| u64::from(ns) + 1));
        stack.1.push(dot.stack.map_or(0, |number| u64::from(number) + 1));
        ip.1.push(dot.frame.into());
    }
    columns.into()
}

/// The kind, and above it whether a page came, and whether the kernel took the fault: what patterns are told by.
fn class_of(dot: &Dot) -> u8 {
    let is_of_kernel = dot.fault.in_user_mode == Some(false);
    dot.kind as u8 | u8::from(dot.is_arrival) << 4 | u8::from(is_of_kernel) << 5
}

/// Two bits each, 0 for what is not known: access, severity, mode, huge.
fn bits(fault: &Fault) -> u8 {
    let access = fault.access.map_or(0, |access| match access {
        Access::Read => 1,
        Access::Write => 2,
        Access::Execute => 3,
    });
    let severity = fault.severity.map_or(0, |severity| match severity {
        Severity::Minor => 1,
        Severity::Major => 2,
    });
    let mode = fault.in_user_mode.map_or(0, |user| 1 + u8::from(user));
    let huge = fault.huge.map_or(0, |huge| 1 + u8::from(huge));
    access | severity << 2 | mode << 4 | huge << 6
}

fn bar_columns(bars: &[Bar]) -> Vec<(&'static str, Column)> {
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
    columns.into()
}

fn tables(scene: &Scene<'_>, columns: &[(&'static str, Column)]) -> Value {
    let sizes = columns.iter().map(|(name, column)| (name, column.bytes().len()));
    let spaces = scene.spaces.iter().map(|space| {
        let page = |address: u64| address >> LOW_BITS;
        let bands = space.bands.iter().map(|it| (page(it.start), page(it.end), it.height));
        json!({
            "label": space.label,
            "is_drawn": space.is_drawn,
            "bands": bands.collect::<Vec<_>>(),
            "names": space.names,
        })
    });
    json!({
        "columns": sizes.collect::<Vec<_>>(),
        "fault_count": scene.dots.len(),
        "bar_count": scene.bars.len(),
        "duration_ns": scene.duration_ns,
        "period": scene.analysis.sampling_period,
        "kinds": Kind::ALL.map(Kind::words),
        "spaces": spaces.collect::<Vec<_>>(),
        "groups": scene.groups.rows,
        "threads": threads(scene),
        "stacks": scene.frames.stacks,
        "frames": scene.frames.names,
        "patterns": patterns(scene),
        "losses": scene.losses,
    })
}

fn threads(scene: &Scene<'_>) -> Vec<Value> {
    let known = scene.analysis.threads.iter();
    let names: HashMap<_, _> = known.map(|it| ((it.pid, it.tid), it.name.clone())).collect();
    let thread = |&(pid, tid): &(u32, u32)| json!({ "pid": pid, "tid": tid, "name": names.get(&(pid, tid)) });
    scene.threads.iter().map(thread).collect()
}

/// The patterns, with what tells which faults are of them.
fn patterns(scene: &Scene<'_>) -> Vec<Value> {
    let pattern = |pattern: &Pattern| {
        let groups = &scene.analysis.groups;
        let identity = pattern.identity.as_ref();
        let group = identity.and_then(|it| groups.iter().position(|group| group.identity == *it));
        json!({
            "sentence": pattern.sentence,
            "advice": pattern.advice,
            "group": group,
            "kind": kind_of(pattern.name).map(|kind| kind as usize),
            "is_of_arrivals": is_of_arrivals(pattern.name),
            "is_of_kernel": pattern.name == PatternName::KernelCopies,
        })
    };
    scene.analysis.patterns.iter().map(pattern).collect()
}

/// Whether a pattern is about pages that come.
fn is_of_arrivals(name: PatternName) -> bool {
    use PatternName::{Churn, Misaligned, NotHuge, OncePerMap, StackGrowth, Staircase};
    matches!(name, Staircase | OncePerMap | NotHuge | Misaligned | Churn | StackGrowth)
}

/// The kind of fault that a pattern is about, if it is one.
fn kind_of(name: PatternName) -> Option<Kind> {
    match name {
        PatternName::CowStorm => Some(Kind::CowAfterFork),
        PatternName::Purging => Some(Kind::Refault),
        PatternName::ColdFile => Some(Kind::FileRead),
        PatternName::FileCopies => Some(Kind::FileCopy),
        _ => None,
    }
}
