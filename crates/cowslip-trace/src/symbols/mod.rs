//! Names of instructions: functions where the program's files have symbols, else a place in a file.

mod frames;
mod modules;

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::SystemTime;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};

use crate::model::{Event, Header};
use crate::perf_maps::PerfMaps;
pub use frames::{FunctionSums, Names};
use modules::AddressSpaces;

/// From here on addresses are the kernel's.
const KERNEL: u64 = 1 << 63;

/// Keeps track of mapped files, and reads their symbols on demand.
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
    code: PerfMaps,
    symbolizer: Symbolizer,
    /// A younger file is not the one that was running.
    began: SystemTime,
    files: HashMap<Arc<str>, Readable>,
    names: HashMap<(Arc<str>, u64), Option<Arc<str>>>,
}

impl Symbols {
    /// The symbols for the trace of this header.
    pub fn new(header: &Header) -> Self {
        Self {
            spaces: AddressSpaces::default(),
            code: PerfMaps::new(header),
            symbolizer: Symbolizer::builder().enable_code_info(false).build(),
            began: header.began(),
            files: HashMap::new(),
            names: HashMap::new(),
        }
    }

    /// Follows the mappings. It needs all events in their order; answers are for the events so far.
    pub fn observe(&mut self, event: &Event) {
        self.spaces.observe(event);
        self.code.observe(event);
    }

    /// The function at `ip` in a process now, including code that the process generated ([`PerfMaps`]);
    /// without symbols `FILE+0xOFFSET`, without a file the address, and `[kernel]` for all of the kernel's.
    ///
    /// A caller's frame holds the address after the call: ask for the one before. A file that was changed
    /// since the trace began has no symbols.
    pub fn name(&mut self, pid: u32, ip: u64) -> Arc<str> {
        if ip >= KERNEL {
            return "[kernel]".into();
        }
        let place = self.spaces.find(pid, ip);
        let is_path = |(file, _): &(Arc<str>, u64)| file.starts_with('/');
        let function =
            place.clone().filter(is_path).and_then(|(file, at)| self.function_in(file, at));
        if let Some(function) = function.or_else(|| self.code.find(pid, ip)) {
            return function;
        }
        match place {
            Some((file, offset_bytes)) => unnamed(&file, offset_bytes),
            None => format!("{ip:#x}").into(),
        }
    }

    /// The function at a place in a file; the place, if there are no symbols.
    fn name_in(&mut self, file: Arc<str>, offset_bytes: u64) -> Arc<str> {
        let function = self.function_in(file.clone(), offset_bytes);
        function.unwrap_or_else(|| unnamed(&file, offset_bytes))
    }

    fn function_in(&mut self, file: Arc<str>, offset_bytes: u64) -> Option<Arc<str>> {
        let key = (file, offset_bytes);
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let function = self.look_up(&key.0, offset_bytes);
        self.names.insert(key, function.clone());
        function
    }

    fn look_up(&mut self, file: &Arc<str>, offset_bytes: u64) -> Option<Arc<str>> {
        let began = self.began;
        let readable = self.files.entry(file.clone()).or_insert_with(|| {
            let changed = fs::metadata(&**file).and_then(|metadata| metadata.modified());
            if changed.is_ok_and(|changed| changed <= began) {
                Readable::All
            } else {
                Readable::None
            }
        });
        if *readable == Readable::All {
            match symbol(&self.symbolizer, file, offset_bytes, true) {
                Ok(Some(name)) => return Some(name),
                Ok(None) => {}
                Err(_) => *readable = Readable::OwnSymbols,
            }
        }
        // The separate debug information may be damaged, or lack a function that the file itself names.
        match readable {
            Readable::None => None,
            _ => symbol(&self.symbolizer, file, offset_bytes, false).ok().flatten(),
        }
    }
}

/// The readable parts of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Readable {
    /// Its debug information, wherever that is, and its symbols.
    All,
    /// Its symbols.
    OwnSymbols,
    /// The file is missing, or has changed.
    None,
}

fn symbol(
    symbolizer: &Symbolizer,
    file: &str,
    offset_bytes: u64,
    debug_syms: bool,
) -> blazesym::Result<Option<Arc<str>>> {
    let source = Source::Elf(Elf { debug_syms, ..Elf::new(file) });
    let symbol = symbolizer.symbolize_single(&source, Input::FileOffset(offset_bytes))?;
    Ok(symbol.as_sym().map(|symbol| symbol.name.as_ref().into()))
}

/// A place in a file without symbols.
fn unnamed(file: &str, offset_bytes: u64) -> Arc<str> {
    let short = file.rsplit('/').next().unwrap_or_default();
    format!("{short}+{offset_bytes:#x}").into()
}
