//! The settings of transparent huge pages in a trace's header, and their effects.

use cowslip_sys::procfs::{Policy, chosen};

use crate::model::Machine;

/// The size of a huge page where the machine does not tell: that of x86.
const USUAL_BYTES: u64 = 2 << 20;

/// The kind of memory that a setting is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `enabled`
    Anonymous,
    /// `shmem_enabled`
    Shared,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "enabled",
            Self::Shared => "shmem_enabled",
        }
    }
}

/// Bytes of the largest kind of huge page.
fn largest_bytes(machine: &Machine) -> u64 {
    let told = machine.thp.get("hpage_pmd_size").and_then(|bytes| bytes.parse().ok());
    told.filter(|bytes: &u64| bytes.is_power_of_two()).unwrap_or(USUAL_BYTES)
}

fn word<'a>(machine: &'a Machine, name: &str) -> Option<&'a str> {
    machine.thp.get(name).map(|line| chosen(line).unwrap_or(line.trim()))
}

/// The value for the largest huge pages: that of their own size, unless it is inherited.
pub(crate) fn setting(machine: &Machine, kind: Kind) -> Option<&str> {
    let of_size = format!("hugepages-{}kB/{}", largest_bytes(machine) >> 10, kind.name());
    let of_size = word(machine, &of_size).filter(|word| *word != "inherit");
    of_size.or_else(|| word(machine, kind.name()))
}

/// The policy for the largest huge pages in private memory.
pub(crate) fn policy(machine: &Machine) -> Option<Policy> {
    setting(machine, Kind::Anonymous).map(Policy::of_word)
}

/// True if shared memory may get the largest huge pages, as far as known.
pub(crate) fn shared_may_be_huge(machine: &Machine) -> bool {
    !matches!(setting(machine, Kind::Shared), Some("never" | "deny"))
}

/// The sizes below the largest that are enabled, as powers of two of base pages, with their values.
pub(crate) fn smaller_sizes(machine: &Machine, kind: Kind) -> Vec<(u32, &str)> {
    let (largest, page) = (largest_bytes(machine), machine.base_page_bytes());
    let size = |(name, _): (&'_ String, _)| -> Option<(u32, &str)> {
        let (kib, setting) = name.strip_prefix("hugepages-")?.split_once("kB/")?;
        let bytes = kib.parse::<u64>().ok()?.checked_mul(1 << 10)?;
        let is_smaller = bytes.is_power_of_two() && (page..largest).contains(&bytes);
        let word = match word(machine, name)? {
            "inherit" => word(machine, kind.name()).unwrap_or("inherit"),
            word => word,
        };
        let is_on = is_smaller && setting == kind.name() && word != "never";
        is_on.then(|| ((bytes / page).trailing_zeros(), word))
    };
    let mut sizes: Vec<_> = machine.thp.iter().filter_map(size).collect();
    sizes.sort_unstable();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(thp: &[(&str, &str)]) -> Machine {
        let thp = thp.iter().map(|(name, line)| ((*name).to_owned(), (*line).to_owned())).collect();
        Machine { thp, ..Machine::default() }
    }

    #[test]
    fn a_size_has_its_own_setting_unless_it_inherits() {
        let enabled = ("enabled", "always madvise [never]");
        let of_size = "hugepages-2048kB/enabled";
        assert_eq!(policy(&machine(&[])), None);
        assert_eq!(policy(&machine(&[enabled])), Some(Policy::Never));
        let inherits = machine(&[enabled, (of_size, "always [inherit] madvise never")]);
        assert_eq!(policy(&inherits), Some(Policy::Never));
        let own = machine(&[enabled, (of_size, "[always] inherit madvise never")]);
        assert_eq!(policy(&own), Some(Policy::Always));
        assert!(shared_may_be_huge(&own), "nothing is told");
        assert!(!shared_may_be_huge(&machine(&[("shmem_enabled", "always [deny] never")])));
    }

    #[test]
    fn sizes_that_are_on_are_told_by_their_pages() {
        let sizes = machine(&[
            ("hugepages-64kB/enabled", "always [madvise] never"),
            ("hugepages-16kB/enabled", "always inherit [never]"),
            ("hugepages-1024kB/enabled", "always [inherit] never"),
            ("hugepages-2048kB/enabled", "[always] inherit never"),
            ("hugepages-64kB/shmem_enabled", "[always] never"),
            ("enabled", "[always] never"),
        ]);
        assert_eq!(smaller_sizes(&sizes, Kind::Anonymous), [(4, "madvise"), (8, "always")]);
        assert_eq!(smaller_sizes(&sizes, Kind::Shared), [(4, "always")]);
    }
}
