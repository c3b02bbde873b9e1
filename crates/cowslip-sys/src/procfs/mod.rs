//! The contents of `/proc` and `/sys`, typed. Parsing is separate from reading, so that tests need
//! no particular machine.

mod maps;
mod memory;
mod mounts;
mod open;
pub mod own;
mod process;
mod thp;

pub use maps::{Mapping, MappingUse, mappings, smaps, usage_of};
pub use memory::{
    BuddyOrders, Pressure, available_bytes, buddy_orders, has_lazily_freed, memory_pressure,
};
pub use mounts::{Mount, mounts};
pub use open::{open, open_self, read_text, write_text};
pub use process::{
    CgroupMembers, command_name, group_and_session, parent_pid, process_ids, resident_bytes,
    start_ticks, thp_is_disabled,
};
pub use thp::{
    Policy, SHMEM_ENABLED, Thp, chosen, set_size_policy, shmem_setting, size_folder, size_policy,
};

/// The value of a field such as `MemFree:  12 kB` in the text of `meminfo`, `status` or `smaps_rollup`, in bytes.
///
/// ```
/// use cowslip_sys::procfs::field_bytes;
/// let meminfo = "MemTotal:       16 kB\nMemFree:  12 kB\nHugePages_Total:       0\n";
/// assert_eq!(field_bytes(meminfo, "MemFree"), Some(12 << 10));
/// assert_eq!(field_bytes(meminfo, "HugePages_Total"), None);
/// ```
pub fn field_bytes(text: &str, name: &str) -> Option<u64> {
    text.lines().filter_map(kib_field).find(|(field, _)| *field == name).map(|(_, bytes)| bytes)
}

/// The name and the number of kibibytes in a line such as `MemFree:  12 kB`, in bytes.
fn kib_field(line: &str) -> Option<(&str, u64)> {
    let (name, rest) = line.split_once(':')?;
    let kib: u64 = rest.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some((name, kib << 10))
}
