//! Names of instructions: functions where the program's files have symbols, else a place in a file.

mod frames;
mod modules;

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};

use crate::model::{Event, Header};
pub use frames::Names;
use modules::AddressSpaces;

/// From here on addresses are the kernel's.
const KERNEL: u64 = 1 << 63;

/// Knows which file was mapped where, and reads its symbols when they are asked for.
///
/// ```
/// use cowslip_trace::model::Header;
/// use cowslip_trace::symbols::Symbols;
/// let mut symbols = Symbols::new(&Header::default());
/// assert_eq!(&*symbols.name(1, 0x1234), "0x1234", "nothing is mapped there");
/// assert_eq!(&*symbols.name(1, u64::MAX), "[kernel]");
/// ```
pub struct Symbols {
    spaces: AddressSpaces,
    symbolizer: Symbolizer,
    /// A file that is younger is not what was running.
    began: SystemTime,
    is_unchanged: HashMap<Arc<str>, bool>,
    names: HashMap<(Arc<str>, u64), Arc<str>>,
}

impl Symbols {
    /// For the trace of this header.
    pub fn new(header: &Header) -> Self {
        Self {
            spaces: AddressSpaces::default(),
            symbolizer: Symbolizer::builder().enable_code_info(false).build(),
            began: UNIX_EPOCH + Duration::from_secs(header.began_unix_seconds),
            is_unchanged: HashMap::new(),
            names: HashMap::new(),
        }
    }

    /// Follows what is mapped. Give it all events in their order, and ask between them.
    pub fn observe(&mut self, event: &Event) {
        self.spaces.observe(event);
    }

    /// The function at `ip` in a process now; without symbols `FILE+0xOFFSET`, without a file the address,
    /// and `[kernel]` for all of the kernel's.
    ///
    /// The address in a caller's frame is that of the instruction behind the call: ask for the one before.
    /// A file that was changed since the trace began has no symbols.
    pub fn name(&mut self, pid: u32, ip: u64) -> Arc<str> {
        if ip >= KERNEL {
            return "[kernel]".into();
        }
        let Some((file, offset_bytes)) = self.spaces.find(pid, ip) else {
            return format!("{ip:#x}").into();
        };
        self.name_in(file, offset_bytes)
    }

    /// The same for a place in a file.
    fn name_in(&mut self, file: Arc<str>, offset_bytes: u64) -> Arc<str> {
        let key = (file, offset_bytes);
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let function = self.function(&key.0, offset_bytes);
        let name: Arc<str> = function.unwrap_or_else(|| {
            let short = key.0.rsplit('/').next().unwrap_or_default();
            format!("{short}+{offset_bytes:#x}").into()
        });
        self.names.insert(key, name.clone());
        name
    }

    fn function(&mut self, file: &Arc<str>, offset_bytes: u64) -> Option<Arc<str>> {
        let began = self.began;
        let is_unchanged = self.is_unchanged.entry(file.clone()).or_insert_with(|| {
            let changed = fs::metadata(&**file).and_then(|metadata| metadata.modified());
            changed.is_ok_and(|changed| changed <= began)
        });
        if !*is_unchanged {
            return None;
        }
        let source = Source::Elf(Elf::new(&**file));
        let symbol = self.symbolizer.symbolize_single(&source, Input::FileOffset(offset_bytes));
        let symbol = symbol.ok()?;
        Some(symbol.as_sym()?.name.as_ref().into())
    }
}
