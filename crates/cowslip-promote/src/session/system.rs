//! The state of the system, as JSON: memory, fragmentation, pressure, settings.

use crate::model::{ORDERS, System};
use cowslip_sys::units::page_size_bytes;
use serde_json::{Map, Value, json};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// The settings that govern huge pages from other sources.
const SETTINGS: [&str; 9] = [
    "enabled",
    "defrag",
    "shmem_enabled",
    "khugepaged/defrag",
    "khugepaged/max_ptes_none",
    "khugepaged/max_ptes_shared",
    "khugepaged/max_ptes_swap",
    "khugepaged/pages_to_scan",
    "khugepaged/scan_sleep_millisecs",
];

pub(super) fn to_json(system: &System) -> Value {
    let page = page_size_bytes() as u64;
    let order = |order: usize| {
        json!({
            "order": order,
            "block_bytes": page << order,
            "free_blocks": system.free_blocks[order],
            "unusable_percent": system.unusable_percent(order),
            "fragmentation_index": system.fragmentation_index(order),
        })
    };
    json!({
        "available_bytes": system.available_bytes,
        "total_bytes": system.total_bytes,
        "free_huge_pages": system.free_huge_pages,
        "fragmentation_percent": system.fragmentation_percent,
        "pressure_percent": system.pressure_percent,
        "orders": (0..ORDERS).map(order).collect::<Vec<_>>(),
        "transparent_hugepage": settings(),
    })
}

/// The choice of a setting that has one in brackets, else its text; settings that the kernel lacks are left
/// out.
fn settings() -> Map<String, Value> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("{THP}/{name}")).ok()?;
        let value = cowslip_sys::procfs::chosen(&text).unwrap_or(text.trim());
        Some((
            name.to_owned(),
            value.parse::<u64>().map_or_else(|_| json!(value), |number| json!(number)),
        ))
    };
    SETTINGS.iter().filter_map(|name| read(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_and_the_choices_are_told() {
        let value = to_json(&System::look().unwrap());
        assert_eq!(value["orders"].as_array().unwrap().len(), ORDERS);
        let chosen = value["transparent_hugepage"]["enabled"].as_str().unwrap();
        assert!(["always", "madvise", "never"].contains(&chosen), "{chosen}");
        assert!(value["transparent_hugepage"]["khugepaged/max_ptes_none"].is_u64());
    }
}
