//! The report of a session, as JSON.

use cowslip_sys::process;
use serde_json::{Map, Value, json};

use super::{ProcessTally, Session, page_size, system};
use crate::model::Coverage;

impl Session {
    /// The report of a run; `wanted` is the huge part that was required in the end, if any.
    pub fn to_json(&self, is_dry_run: bool, wanted: Option<f64>) -> Value {
        let tally = &self.tally;
        let processes: Vec<Value> = tally
            .processes
            .iter()
            .map(|(process, tally)| process_json(process.pid, tally))
            .collect();
        let after = tally.coverage(|process| process.after);
        json!({
            "schema": "cowslip.promote/1",
            "dry_run": is_dry_run,
            "settings": self.promoter.policy().settings(),
            "heat": self.heat.to_json(),
            "system": system::to_json(&tally.system),
            "scarce": self.promoter.policy().is_scarce(),
            "page_size": self.page_size().map(page_size::to_json),
            "processes": processes,
            "coverage": {
                "ratio": after.ratio(),
                "fitting_ratio": after.fitting_ratio(),
                "wanted": wanted,
                "reached": wanted.map(|wanted| after.reaches(wanted)),
            },
            "reclaims": tally.reclaims,
            "reclaimed_bytes": tally.reclaimed_bytes,
            "looks": tally.looks,
            "look_cpu_ns": tally.look_cpu_ns,
            "cpu_ns": process::cpu_ns(),
        })
    }
}

fn process_json(pid: i32, tally: &ProcessTally) -> Value {
    let coverage = |coverage: Option<Coverage>| {
        coverage.map(|coverage| {
            json!({
                "anonymous_bytes": coverage.anonymous_bytes,
                "fitting_bytes": coverage.fitting_bytes,
                "huge_bytes": coverage.huge_bytes,
                "arena_bytes": coverage.arena_bytes,
                "arena_huge_bytes": coverage.arena_huge_bytes,
                "shmem_bytes": coverage.shmem_bytes,
                "shmem_huge_bytes": coverage.shmem_huge_bytes,
                "shmem_unaligned_bytes": coverage.shmem_unaligned_bytes,
                "text_bytes": coverage.text_bytes,
                "text_huge_bytes": coverage.text_huge_bytes,
                "ratio": coverage.ratio(),
                "fitting_ratio": coverage.fitting_ratio(),
            })
        })
    };
    let regions: Map<String, Value> =
        tally.regions.iter().map(|(reason, count)| (reason.to_string(), json!(count))).collect();
    let refusals: Map<String, Value> =
        tally.refusals.iter().map(|(errno, count)| (errno.to_string(), json!(count))).collect();
    json!({
        "pid": pid,
        "name": tally.name,
        "ended": tally.has_ended,
        "weight": tally.weight,
        "group": tally.group,
        "resident_bytes": tally.resident_bytes,
        "limits": tally.limits,
        "heat_percent": tally.heat_percent,
        "heat_source": tally.heat_source,
        "huge_source": tally.huge_source,
        "lazily_freed_bytes": tally.lazily_freed_bytes,
        "lazy_free_source": tally.lazy_free_source,
        "before": coverage(tally.before),
        "after": coverage(tally.after),
        "promotions": tally.promotions,
        "splits": tally.splits,
        "freed_bytes": tally.freed_bytes,
        "overtaken": tally.overtaken,
        "refusals_by_errno": refusals,
        "regions_by_reason": regions,
        "measured": tally.measured,
        "stall_ns": tally.stall_ns,
        "longest_stall_ns": tally.longest_stall_ns,
    })
}
