//! Differences between the machines and programs of two traces.

use std::collections::{BTreeMap, BTreeSet};

use cowslip_sys::procfs::chosen;
use serde::Serialize;

use crate::model::Header;

/// A setting that differs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Setting {
    /// Its name, such as `transparent_hugepage/enabled`.
    pub name: String,
    /// Its value in each trace; `None` if the trace does not tell, or there is none.
    pub values: [Option<String>; 2],
}

pub(super) fn differing(headers: [&Header; 2]) -> Vec<Setting> {
    let [first, second] = headers.map(all);
    let names: BTreeSet<&(u8, String)> = first.keys().chain(second.keys()).collect();
    let setting = |name: &(u8, String)| {
        let values = [&first, &second].map(|all| all.get(name).cloned());
        (values[0] != values[1]).then(|| Setting { name: name.1.clone(), values })
    };
    names.into_iter().filter_map(setting).collect()
}

/// The settings in a header, by rank and name: those that affect faults most come first.
fn all(header: &Header) -> BTreeMap<(u8, String), String> {
    let machine = &header.machine;
    let word = |value: &str| chosen(value).unwrap_or(value).trim().to_owned();
    let thp = machine.thp.iter();
    let thp = thp.map(|(name, value)| ((0, format!("transparent_hugepage/{name}")), word(value)));
    let allocator = header.allocator.iter();
    let allocator = allocator.map(|name| ((1, "allocator".to_owned()), name.clone()));
    let variables = header.environment.iter();
    let variables = variables.map(|(name, value)| ((2, name.clone()), value.clone()));
    let command = ((3, "command".to_owned()), header.title());
    let facts = [
        ("kernel", machine.kernel_release.clone()),
        ("kernel build", machine.kernel_version.clone()),
        ("architecture", machine.architecture.clone()),
        ("processor", machine.cpu_model.clone()),
        ("processors", machine.cpus.to_string()),
        ("memory bytes", machine.memory_bytes.to_string()),
        ("page bytes", machine.page_bytes.to_string()),
        ("one fault in", header.sampling_period.to_string()),
        ("sources", header.sources.join(" ")),
    ];
    let facts = facts.map(|(name, value)| ((4, name.to_owned()), value));
    let config = machine.kernel_config.iter();
    let config = config.map(|(name, value)| ((5, name.clone()), value.clone()));
    let sysctl = machine.sysctl.iter();
    let sysctl = sysctl.map(|(name, value)| ((6, name.clone()), value.clone()));
    let all = thp.chain(allocator).chain(variables).chain([command]).chain(facts);
    all.chain(config).chain(sysctl).filter(|(_, value)| !value.is_empty()).collect()
}
