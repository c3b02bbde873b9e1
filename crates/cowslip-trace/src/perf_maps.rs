//! Names of code that programs generated while they ran: `/tmp/perf-PID.map`, as just-in-time compilers write
//! it for perf (`node --perf-basic-prof`, `java -XX:+DumpPerfMapAtExit`, `python3 -X perf`).

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use cowslip_sys::regular;

use crate::model::{Event, EventKind, Header};

/// The folder in which programs put their maps.
const FOLDER: &str = "/tmp";
/// A map of more bytes is none.
const MOST_BYTES: u64 = 256 << 20;
/// A child has its parent's code; so many generations are looked through.
const GENERATIONS: usize = 16;

/// The maps of all processes of a trace, each read on first use.
///
/// ```
/// use cowslip_trace::PerfMaps;
/// assert_eq!(PerfMaps::default().find(1, 0x1000), None, "no folder, no maps");
/// ```
#[derive(Debug, Default)]
pub struct PerfMaps {
    folder: Option<PathBuf>,
    /// An older map belongs to another process with that number; `None` if the processes are older than the
    /// trace.
    began: Option<SystemTime>,
    maps: HashMap<u32, Option<PerfMap>>,
    /// By child, from its fork until it becomes another program.
    parents: HashMap<u32, u32>,
}

/// The map of one process.
#[derive(Debug, Default)]
struct PerfMap {
    text: String,
    /// Functions by first address.
    functions: BTreeMap<u64, Function>,
}

#[derive(Clone, Debug)]
struct Function {
    end: u64,
    /// The place of its name in the text.
    name: Range<usize>,
}

impl PerfMaps {
    /// The maps for the trace of this header.
    pub fn new(header: &Header) -> Self {
        Self::within(Path::new(FOLDER), header)
    }

    /// Like [`Self::new`], with another folder.
    pub fn within(folder: &Path, header: &Header) -> Self {
        let began = header.attached_pids.is_empty().then(|| header.began());
        Self { folder: Some(folder.to_owned()), began, ..Self::default() }
    }

    /// Follows forks. It needs all events in their order; answers are for the events so far.
    pub fn observe(&mut self, event: &Event) {
        match event.what {
            EventKind::Fork { child_pid, .. } if child_pid != event.pid => {
                self.parents.insert(child_pid, event.pid);
            }
            EventKind::Exec { .. } => drop(self.parents.remove(&event.pid)),
            _ => {}
        }
    }

    /// The function at an address of a process.
    pub fn find(&mut self, pid: u32, address: u64) -> Option<Arc<str>> {
        let mut pid = pid;
        for _ in 0..GENERATIONS {
            let found = self.map(pid).and_then(|map| map.find(address));
            if found.is_some() {
                return found.map(Into::into);
            }
            pid = *self.parents.get(&pid)?;
        }
        None
    }

    fn map(&mut self, pid: u32) -> Option<&PerfMap> {
        let Self { folder, began, maps, .. } = self;
        let folder = folder.as_ref()?;
        let read = || {
            let path = folder.join(format!("perf-{pid}.map"));
            // Anybody may put a link, a pipe or a file without end there.
            fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
            let file = regular::open(&path).ok()?;
            let metadata = file.metadata().ok()?;
            let is_of_this_process =
                began.is_none_or(|began| metadata.modified().is_ok_and(|changed| changed >= began));
            let mut bytes = Vec::new();
            (is_of_this_process && metadata.len() <= MOST_BYTES)
                .then(|| file.take(MOST_BYTES).read_to_end(&mut bytes).ok())??;
            Some(PerfMap::parse(String::from_utf8_lossy(&bytes).into_owned()))
        };
        maps.entry(pid).or_insert_with(read).as_ref()
    }
}

impl PerfMap {
    /// Parses lines of start and length, hexadecimal, and a name. A later function replaces earlier ones at
    /// the same place, because code moves. Other lines are skipped; the last one may be cut.
    fn parse(text: String) -> Self {
        let mut map = Self::default();
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            let line_at = at;
            at += line.len();
            let line = line.trim_end();
            let mut words = line.splitn(3, ' ');
            let (Some(start), Some(length), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
            let range = number(start).zip(number(length));
            let range = range.and_then(|(start, length)| Some((start, start.checked_add(length)?)));
            if let Some((start, end)) = range.filter(|(start, end)| start < end) {
                let end_of_name = line_at + line.len();
                let name = end_of_name - name.len()..end_of_name;
                map.insert(start, Function { end, name });
            }
        }
        Self { text, ..map }
    }

    fn insert(&mut self, start: u64, function: Function) {
        let end = function.end;
        let overlapped =
            self.functions.range(..end).rev().take_while(|(_, older)| older.end > start);
        let overlapped: Vec<_> = overlapped.map(|(start, older)| (*start, older.clone())).collect();
        for (before, older) in overlapped {
            self.functions.remove(&before);
            if before < start {
                self.functions.insert(before, Function { end: start, ..older.clone() });
            }
            if older.end > end {
                self.functions.insert(end, older);
            }
        }
        self.functions.insert(start, function);
    }

    fn find(&self, address: u64) -> Option<&str> {
        let (_, function) = self.functions.range(..=address).next_back()?;
        (address < function.end).then(|| &self.text[function.name.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_read_and_what_is_none_is_passed_over() {
        let text = "7f00 10 JS:*fill /a b.js:1:2\n\nnonsense\n0x7f10 0x8 Stub:x\nffffffffffffffff 2 over\n\
                    7f20 0 empty\n7f30 10 cu";
        let map = PerfMap::parse(text.to_owned());
        assert_eq!(map.find(0x7eff), None);
        assert_eq!(map.find(0x7f0f), Some("JS:*fill /a b.js:1:2"));
        assert_eq!(map.find(0x7f10), Some("Stub:x"));
        assert_eq!((map.find(0x7f18), map.find(0x7f20)), (None, None));
        assert_eq!(map.find(0x7f3f), Some("cu"));
    }

    /// Compares with a model that stores every address by itself.
    #[test]
    fn the_last_function_at_an_address_is_there() {
        let mut seed = 1_u64;
        let mut below = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % bound
        };
        let (mut text, mut model) = (String::new(), vec![None; 300]);
        for nth in 0..400 {
            let (start, length) = (below(250), 1 + below(40));
            text += &format!("{start:x} {length:x} f{nth}\n");
            model[start as usize..(start + length) as usize].fill(Some(format!("f{nth}")));
        }
        let map = PerfMap::parse(text);
        for (address, wanted) in model.iter().enumerate() {
            assert_eq!(map.find(address as u64), wanted.as_deref(), "{address}");
        }
    }

    #[test]
    fn maps_are_of_the_process_and_of_what_it_forked_until_that_is_another_program() {
        let folder = std::env::temp_dir().join(format!("cowslip-perf-maps-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("perf-7.map"), "1000 100 code\n").unwrap();
        let mut maps = PerfMaps::within(&folder, &Header::default());
        let event = |pid, what| Event { time_ns: 0, pid, tid: pid, what };
        maps.observe(&event(7, EventKind::Fork { child_pid: 8, child_tid: 8 }));
        assert_eq!(maps.find(7, 0x1010).as_deref(), Some("code"));
        assert_eq!(maps.find(8, 0x1010).as_deref(), Some("code"));
        maps.observe(&event(8, EventKind::Exec { name: "other".into() }));
        assert_eq!((maps.find(8, 0x1010), maps.find(9, 0x1010)), (None, None));
        // A map older than the trace of a command belongs to another process that had its number.
        let later = Header { began_unix_ns: u64::MAX / 2, ..Header::default() };
        assert_eq!(PerfMaps::within(&folder, &later).find(7, 0x1010), None);
        // A hole without content takes no disk.
        let endless = fs::File::create(folder.join("perf-10.map")).unwrap();
        endless.set_len(MOST_BYTES + 1).unwrap();
        assert_eq!(maps.find(10, 0x1010), None);
        let attached = Header { attached_pids: vec![7], ..later };
        assert!(PerfMaps::within(&folder, &attached).find(7, 0x1010).is_some());
        fs::remove_dir_all(folder).unwrap();
    }
}
