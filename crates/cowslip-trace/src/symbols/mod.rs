//! Names of instructions: functions where the program's files have symbols, else a place in a file.

mod debuginfod;
mod frames;

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::SystemTime;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolizer};

use crate::model::Header;
pub use debuginfod::debuginfod_notice;
use debuginfod::{Fetched, Servers};
pub use frames::{FunctionSums, Names};

/// The functions at one place, the innermost first; at least one.
type Functions = Arc<[Arc<str>]>;

/// Reads the symbols of files on demand.
struct Symbols {
    symbolizer: Symbolizer,
    /// A younger file is not the one that was running.
    began: SystemTime,
    files: HashMap<Arc<str>, Readable>,
    servers: Servers,
    /// The debug information of files without symbols of their own, as far as servers have it.
    fetched: HashMap<Arc<str>, Option<Fetched>>,
    names: HashMap<(Arc<str>, u64), Option<Functions>>,
}

impl Symbols {
    /// The symbols for the trace of this header.
    fn new(header: &Header) -> Self {
        Self {
            symbolizer: Symbolizer::builder().enable_code_info(true).build(),
            began: header.began(),
            files: HashMap::new(),
            servers: Servers::new(),
            fetched: HashMap::new(),
            names: HashMap::new(),
        }
    }

    /// The functions at a place in a file; the place, if there are no symbols.
    fn functions_or_place(&mut self, file: Arc<str>, offset_bytes: u64) -> Functions {
        let functions = self.functions_in(file.clone(), offset_bytes);
        functions.unwrap_or_else(|| one(unnamed(&file, offset_bytes)))
    }

    fn functions_in(&mut self, file: Arc<str>, offset_bytes: u64) -> Option<Functions> {
        let key = (file, offset_bytes);
        if let Some(functions) = self.names.get(&key) {
            return functions.clone();
        }
        let functions = self.look_up(&key.0, offset_bytes);
        self.names.insert(key, functions.clone());
        functions
    }

    fn look_up(&mut self, file: &Arc<str>, offset_bytes: u64) -> Option<Functions> {
        let began = self.began;
        let readable = self.files.entry(file.clone()).or_insert_with(|| {
            // A trace may name anything: a FIFO would be waited for, and a device may act when it is opened.
            let there = fs::metadata(&**file).ok().filter(fs::Metadata::is_file);
            let changed = there.and_then(|metadata| metadata.modified().ok());
            if changed.is_some_and(|changed| changed <= began) {
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
        if *readable == Readable::None {
            return None;
        }
        let own = symbol(&self.symbolizer, file, offset_bytes, false).ok().flatten();
        own.or_else(|| self.ask_servers(file, offset_bytes))
    }

    fn ask_servers(&mut self, file: &Arc<str>, offset_bytes: u64) -> Option<Functions> {
        let fetched = self.fetched.entry(file.clone());
        let fetched = fetched.or_insert_with(|| self.servers.find(file)).as_ref()?;
        let source = Source::Elf(Elf::new(&fetched.debug));
        let input = Input::VirtOffset(fetched.address(offset_bytes)?);
        functions(&self.symbolizer, &source, input).ok().flatten()
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
) -> blazesym::Result<Option<Functions>> {
    let source = Source::Elf(Elf { debug_syms, ..Elf::new(file) });
    functions(symbolizer, &source, Input::FileOffset(offset_bytes))
}

fn functions(
    symbolizer: &Symbolizer,
    source: &Source<'_>,
    input: Input<u64>,
) -> blazesym::Result<Option<Functions>> {
    let symbol = symbolizer.symbolize_single(source, input)?;
    let functions = |symbol: &Sym<'_>| {
        let inlined = symbol.inlined.iter().rev().map(|inlined| inlined.name.as_ref().into());
        let mut names: Vec<Arc<str>> = inlined.chain([symbol.name.as_ref().into()]).collect();
        // A compiler that splits a function and puts the parts together again notes it as a callee of itself.
        names.dedup();
        names.into()
    };
    Ok(symbol.as_sym().map(functions))
}

fn one(name: Arc<str>) -> Functions {
    [name].into()
}

/// A place in a file without symbols.
fn unnamed(file: &str, offset_bytes: u64) -> Arc<str> {
    let short = file.rsplit('/').next().unwrap_or_default();
    format!("{short}+{offset_bytes:#x}").into()
}
