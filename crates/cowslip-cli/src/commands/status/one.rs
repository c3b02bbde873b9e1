//! `cowslip status` for one program: everything known about its arenas.

use cowslip::raw::Departure;
use cowslip::units::ByteCount;
use cowslip_sys::{Errno, reason};
use serde_json::{Map, Value};

use super::arena::Arena;

fn left(arena: &Arena) -> String {
    let why = Departure::of_metrics(arena.metrics.left_for);
    let why: Vec<_> = why.map(|why| why.to_string()).collect();
    match why.is_empty() {
        true => "nothing".into(),
        false => format!("{}: {}", ByteCount(arena.metrics.left_bytes), why.join("; ")),
    }
}

pub(super) fn to_json(arena: &Arena) -> Value {
    let fields = arena.metrics.fields().into_iter();
    let mut fields: Map<String, Value> =
        fields.map(|(name, value)| (name.into(), value.into())).collect();
    fields.insert("state".into(), arena.state().into());
    let footprint = &arena.footprint;
    for (name, bytes) in [
        ("held_bytes", footprint.held_bytes),
        ("private_bytes", footprint.private_bytes),
        ("resident_bytes", footprint.resident_bytes),
        ("huge_mapped_bytes", footprint.huge_mapped_bytes),
        ("anonymous_elsewhere_bytes", footprint.elsewhere_bytes),
    ] {
        fields.insert(name.into(), bytes.into());
    }
    fields.insert("anonymous_in_arena_percent".into(), footprint.in_arena_percent().into());
    Value::Object(fields)
}

/// How many failed, and why the last did.
fn failures(count: u64, errno: u64) -> String {
    match i32::try_from(errno) {
        Ok(errno @ 1..4096) if count > 0 => {
            format!("{count}: {}", reason(Errno::from_raw_os_error(errno)))
        }
        _ => count.to_string(),
    }
}

pub(super) fn lines(arena: &Arena) -> Vec<String> {
    let (m, footprint) = (&arena.metrics, &arena.footprint);
    let us = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
    let way = match (m.has_userfaultfd, m.freezes) {
        (1, _) => "by userfaultfd, thawed in the background",
        (_, 0) => "nothing was frozen yet",
        _ => "without userfaultfd: frozen memory stays frozen",
    };
    let rows = [
        ("state", format!("{}, {} frozen chunks of 2 MiB", arena.state(), m.frozen_chunks)),
        ("arena", format!("{:#x}, {}", m.arena_start_address, ByteCount(m.capacity_bytes))),
        ("used", ByteCount(m.used_bytes).to_string()),
        ("held", ByteCount(footprint.held_bytes).to_string()),
        ("mapped now", ByteCount(footprint.resident_bytes).to_string()),
        ("mapped by huge pages", ByteCount(footprint.huge_mapped_bytes).to_string()),
        ("private copies", ByteCount(footprint.private_bytes).to_string()),
        ("of anonymous memory", format!("{:.1} %", footprint.in_arena_percent())),
        ("outside the arena", ByteCount(footprint.elsewhere_bytes).to_string()),
        ("left the arena", left(arena)),
        ("mappings outside", m.passed_mappings.to_string()),
        ("freezes", way.into()),
        ("  so far", m.freezes.to_string()),
        ("  failed", m.failed_freezes.to_string()),
        ("  last", us(m.last_freeze_ns)),
        ("  longest", us(m.longest_freeze_ns)),
        ("forks", m.forks.to_string()),
        ("thaws", m.thaws.to_string()),
        ("  pages copied back", m.thawed_pages.to_string()),
        ("  longest step", us(m.longest_thaw_chunk_ns)),
        ("  failed chunks", failures(m.failed_thaw_chunks, m.last_thaw_errno)),
        ("moved chunks", m.moved_chunks.to_string()),
        ("  failed", failures(m.failed_moves, m.last_move_errno)),
        ("  places with readers", m.vacated_chunks.to_string()),
        ("kept chunks", m.kept_chunks.to_string()),
        ("collapsed chunks", m.collapsed_chunks.to_string()),
        ("split chunks", m.split_chunks.to_string()),
        ("waits of threads", m.waits.to_string()),
        ("longest stall", us(m.longest_stall_ns)),
        ("children ended", m.ended_children.to_string()),
    ];
    let mut lines = vec![format!("process {}", m.pid)];
    lines.extend(rows.map(|(name, value)| format!("  {name:<22} {value}")));
    lines
}
