//! What `/proc` and `/sys` say, typed. Text is parsed apart from being read, so that tests need no
//! particular machine.

mod maps;
mod memory;
mod process;
mod thp;

pub use maps::{Mapping, MappingUse, mappings, smaps};
pub use memory::{BuddyOrders, Pressure, available_bytes, buddy_orders, memory_pressure};
pub use process::{
    CgroupMembers, command_name, process_ids, resident_bytes, start_ticks, thp_is_disabled,
};
pub use thp::{Policy, Thp};

use crate::{Errno, Result};

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// The number of kibibytes in a line such as `MemFree:  12 kB`, in bytes.
fn kib_field(line: &str) -> Option<(&str, u64)> {
    let (name, rest) = line.split_once(':')?;
    let kib: u64 = rest.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some((name, kib << 10))
}
