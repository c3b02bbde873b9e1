//! Debug information from servers, by elfutils' client, where `DEBUGINFOD_URLS` names them (`debuginfod(8)`).

use std::ffi::OsStr;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, str};

use cowslip_sys::executable;
use object::{Object, ObjectSegment, ReadCache};

const CLIENT: &str = "debuginfod-find";
const URLS: &str = "DEBUGINFOD_URLS";
/// The time for one file, in seconds.
const FILE_LIMIT: &str = "60";
/// The time after which no further file is asked for.
const LIMIT: Duration = Duration::from_secs(120);

/// A notice if servers are named, but the client is not installed.
pub fn debuginfod_notice() -> Option<String> {
    let is_missing =
        is_set() && executable::find(OsStr::new(CLIENT), env::var_os("PATH").as_deref()).is_err();
    is_missing.then(|| format!("{URLS} is set, but {CLIENT} is not installed: package debuginfod"))
}

fn is_set() -> bool {
    env::var_os(URLS).is_some_and(|urls| !urls.is_empty())
}

/// Asks the servers, for a limited time.
pub(super) struct Servers {
    left: Duration,
}

/// A file's debug information, from a server.
pub(super) struct Fetched {
    pub(super) debug: PathBuf,
    /// The places in the file and the addresses of its segments.
    segments: Vec<(u64, u64, u64)>,
}

impl Servers {
    pub(super) fn new() -> Self {
        Self { left: if is_set() { LIMIT } else { Duration::ZERO } }
    }

    /// The debug information of a program's file. Only its build id goes to the servers.
    pub(super) fn find(&mut self, file: &str) -> Option<Fetched> {
        if self.left.is_zero() {
            return None;
        }
        let bytes = ReadCache::new(File::open(file).ok()?);
        let parsed = object::File::parse(&bytes).ok()?;
        let id = parsed.build_id().ok()??;
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let segment = |segment: object::Segment<'_, '_, _>| {
            let (offset, length) = segment.file_range();
            (offset, length, segment.address())
        };
        let segments = parsed.segments().map(segment).collect();
        let began = Instant::now();
        let mut client = Command::new(CLIENT);
        client.args(["debuginfo", &id]).stdin(Stdio::null()).stderr(Stdio::null());
        let ran = client.env("DEBUGINFOD_MAXTIME", FILE_LIMIT).output();
        self.left = self.left.saturating_sub(began.elapsed());
        let ran = ran.ok().filter(|ran| ran.status.success())?;
        let debug = PathBuf::from(str::from_utf8(&ran.stdout).ok()?.trim_end());
        debug.is_absolute().then_some(Fetched { debug, segments })
    }
}

impl Fetched {
    /// The address in the debug information of a place in the program's file.
    pub(super) fn address(&self, offset_bytes: u64) -> Option<u64> {
        self.segments.iter().find_map(|&(offset, length, address)| {
            let within = offset_bytes.checked_sub(offset).filter(|within| *within < length)?;
            address.checked_add(within)
        })
    }
}
