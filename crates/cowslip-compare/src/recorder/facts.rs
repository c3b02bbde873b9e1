//! Facts about the machine that a reader needs to compare recordings.

use std::collections::BTreeMap;
use std::fs;

use cowslip_sys::procfs::chosen;

const FILES: [(&str, &str); 12] = [
    ("kernel", "/proc/sys/kernel/osrelease"),
    ("kernel.version", "/proc/sys/kernel/version"),
    ("kernel.command_line", "/proc/cmdline"),
    ("thp.enabled", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("thp.shmem_enabled", "/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
    ("thp.defrag", "/sys/kernel/mm/transparent_hugepage/defrag"),
    ("thp.max_ptes_none", "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none"),
    ("hugetlb.pages", "/proc/sys/vm/nr_hugepages"),
    ("vm.swappiness", "/proc/sys/vm/swappiness"),
    ("vm.overcommit_memory", "/proc/sys/vm/overcommit_memory"),
    ("kernel.numa_balancing", "/proc/sys/kernel/numa_balancing"),
    ("cpu.governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
];

/// The facts that are settings, which a command changes at once.
const SETTINGS: [&str; 4] = ["thp.", "hugetlb.", "vm.", "kernel.numa_balancing"];

/// The command that gives a setting among the facts a value back; `None` for what no command changes.
///
/// ```
/// use cowslip_compare::recorder::way_back;
/// let back = way_back("thp.enabled", "always");
/// assert_eq!(back.as_deref(), Some("echo always > /sys/kernel/mm/transparent_hugepage/enabled"));
/// assert_eq!(way_back("kernel", "6.12"), None);
/// ```
pub fn way_back(name: &str, value: &str) -> Option<String> {
    let is_setting = SETTINGS.iter().any(|beginning| name.starts_with(beginning));
    // A file of results may say anything; the command is one to be copied.
    let is_plain = !value.is_empty()
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+".contains(&byte));
    let (_, path) = FILES.iter().find(|(known, _)| *known == name)?;
    (is_setting && is_plain).then(|| format!("echo {value} > {path}"))
}

/// Kernel, settings of huge pages and memory, processor, without those that cannot be read.
pub fn facts() -> BTreeMap<String, String> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let word = |text: &str| chosen(text).unwrap_or(text).to_owned();
    let mut facts: BTreeMap<String, String> = FILES
        .iter()
        .filter_map(|(name, path)| Some(((*name).to_owned(), word(read(path)?.trim()))))
        .collect();
    let first = |path: &str, name: &str| {
        let line = |text: &str| text.lines().find_map(|line| value(line, name).map(str::to_owned));
        line(&read(path)?)
    };
    let model = first("/proc/cpuinfo", "model name");
    facts.extend(model.map(|model| ("cpu.model".to_owned(), model)));
    facts.extend(first("/proc/meminfo", "MemTotal").map(|size| ("memory".to_owned(), size)));
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    facts.insert("cpu.count".to_owned(), cpus.to_string());
    facts
}

fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (key, value) = line.split_once(':')?;
    (key.trim() == name).then(|| value.trim())
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_has_a_kernel_and_a_choice_is_its_word() {
        let facts = super::facts();
        assert!(facts.contains_key("kernel"));
        assert!(facts.get("thp.enabled").is_none_or(|value| !value.contains('[')), "{facts:?}");
    }
}
