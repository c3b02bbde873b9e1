//! The kernel's own histogram of fault latencies, by histogram triggers of tracefs.
//!
//! ```text
//! enter: probe of handle_mm_fault        leave: its return            NAME: synthetic event
//!   began[thread] = time, first try  ─▶    took = time − began   ─▶     faults[thread, kind, log2(took)]
//!   mode[thread], each try           ─▶    kind = mode, major
//! ```
//! A try that gives up its locks and begins anew is one fault with the tries after it. Faults without registers are
//! not the program's: `perf` does not count them either.
//!
//! Triggers know no processes; the threads of others are left out when the histogram is read. Names contain the
//! process and its namespace: the next recorder removes everything that a killed one left.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use cowslip_sys::Errno;
use cowslip_sys::capabilities::SETCAP;
use cowslip_sys::perf::tracefs;

use super::status::{PermissionStatus, refused, unfound};
use crate::model::{Latencies, LatencyBucket, Severity};

const PREFIX: &str = "cowslip_";
/// Threads, or threads with kinds and latencies, that a histogram has room for.
const ROOM: u32 = 1 << 16;
/// Calls of the function at one time.
const MOST_AT_ONCE: u32 = 4096;
/// `FAULT_FLAG_TRIED` and `FAULT_FLAG_USER`: bits of the mode, and of a kind above that of a major fault.
const MODE: &str = "$arg3:b2@5/32";
/// `VM_FAULT_MAJOR`.
const MAJOR: &str = "$retval:b1@2/32";
/// `VM_FAULT_RETRY` and `VM_FAULT_ERROR`: the kernel counts no fault.
const NOT_SERVED: &str = "0xc73";
/// Bits of a kind: the fault is major, or was in an earlier try.
const KIND_MAJOR: u32 = 0b11;
const KIND_USER: u32 = 0b100;
/// The events that have triggers, a user of another before that one.
const TRIGGERED: [&str; 3] = ["synthetic/NAME", "cowslip/NAME_leave", "cowslip/NAME_enter"];

/// Done before the first histogram of this process.
static LEFT: Once = Once::new();
/// Histograms of this process so far.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A histogram that counts, until it is dropped.
#[derive(Debug)]
pub(super) struct Histogram {
    tracefs: PathBuf,
    name: String,
}

/// The obstacle to a histogram.
#[derive(Debug)]
pub(super) struct Obstacle {
    pub(super) status: PermissionStatus,
    /// Options that the kernel was built without.
    lacks: Vec<&'static str>,
}

impl Obstacle {
    /// The end of a sentence about missing latencies.
    pub(super) fn or_fix(self) -> String {
        match self.lacks.is_empty() {
            true => self.status.or_fix(),
            false => format!(": this kernel lacks {}", self.lacks.join(", ")),
        }
    }
}

impl Histogram {
    /// Begins to count the faults of all threads.
    pub(super) fn begin() -> Result<Self, Obstacle> {
        let tracefs = tracefs().map_err(|error| {
            let status = match unfound(error) {
                PermissionStatus::Denied { fix: Some(SETCAP) } => {
                    PermissionStatus::Denied { fix: None }
                }
                status => status,
            };
            Obstacle { status, lacks: Vec::new() }
        })?;
        let namespace = namespace();
        LEFT.call_once(|| remove_left(&tracefs, &namespace));
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("{namespace}{}_{number}", std::process::id());
        let histogram = Self { tracefs, name };
        histogram.make().map_err(|error| histogram.obstacle(&error))?;
        Ok(histogram)
    }

    fn make(&self) -> io::Result<()> {
        let Self { tracefs, name } = self;
        fs::create_dir(self.instance())?;
        let events = tracefs.join("dynamic_events");
        append(
            &events,
            &format!("p:cowslip/{name}_enter handle_mm_fault mode={MODE} regs=$arg4:x64"),
        )?;
        append(
            &events,
            &format!(
                "r{MOST_AT_ONCE}:cowslip/{name}_leave handle_mm_fault major={MAJOR} ret=$retval:u32"
            ),
        )?;
        append(&events, &format!("s:synthetic/{name} u64 latency; u32 kind"))?;
        let of_thread = format!("hist:keys=common_pid:size={ROOM}:clock=mono");
        self.trigger(2, &format!("{of_thread}:mode=mode if regs != 0"))?;
        self.trigger(
            2,
            &format!("{of_thread}:began=common_timestamp if regs != 0 && !(mode & 1)"),
        )?;
        self.trigger(
            1,
            &format!(
                "{of_thread}:took=common_timestamp-$began:kind=$mode+$mode+major:\
                 onmatch(cowslip.{name}_enter).{name}($took,$kind) if !(ret & {NOT_SERVED})"
            ),
        )?;
        self.trigger(0, &Self::counts())
    }

    fn counts() -> String {
        format!("hist:keys=common_pid,kind,latency.log2:size={ROOM}")
    }

    fn instance(&self) -> PathBuf {
        self.tracefs.join("instances").join(&self.name)
    }

    /// The file `of` of an event in [`TRIGGERED`].
    fn file(&self, event: usize, of: &str) -> PathBuf {
        let event = TRIGGERED[event].replace("NAME", &self.name);
        self.instance().join("events").join(event).join(of)
    }

    fn trigger(&self, event: usize, trigger: &str) -> io::Result<()> {
        append(&self.file(event, "trigger"), trigger)
    }

    fn obstacle(&self, error: &io::Error) -> Obstacle {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        let mut lacks = Vec::new();
        let status = match errno {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => PermissionStatus::Denied { fix: None },
            Errno::INVAL | Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP => {
                let lacking = [
                    ("CONFIG_KPROBE_EVENTS", self.tracefs.join("kprobe_events")),
                    ("CONFIG_HIST_TRIGGERS", self.tracefs.join("synthetic_events")),
                ];
                let absent = lacking.into_iter().filter(|(_, file)| !file.exists());
                lacks.extend(absent.map(|(option, _)| option));
                match lacks.is_empty() {
                    true => PermissionStatus::Unknown { errno: errno.raw_os_error() },
                    false => PermissionStatus::Unsupported,
                }
            }
            errno => refused(errno),
        };
        Obstacle { status, lacks }
    }

    /// Forgets all faults so far.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.trigger(0, &format!("{}:clear", Self::counts()))
    }

    /// The faults of these threads.
    pub(super) fn read(&self, threads: &HashSet<u32>) -> io::Result<Latencies> {
        let text = fs::read_to_string(self.file(0, "hist"))?;
        let mut latencies = parse(&text, threads);
        for event in [1, 2] {
            latencies.uncounted += dropped(&fs::read_to_string(self.file(event, "hist"))?);
        }
        let profile = fs::read_to_string(self.tracefs.join("kprobe_profile"))?;
        let mut rows = profile.lines().map(str::split_whitespace);
        let leave = format!("{}_leave", self.name);
        let missed = rows.find_map(|mut row| (row.next()? == leave).then(|| row.next_back())?);
        latencies.uncounted += missed.and_then(|number| number.parse().ok()).unwrap_or(0);
        Ok(latencies)
    }
}

impl Drop for Histogram {
    fn drop(&mut self) {
        for event in 0..TRIGGERED.len() {
            // Without triggers if it is opened so.
            let _ = File::create(self.file(event, "trigger"));
        }
        for event in TRIGGERED {
            let event = event.replace("NAME", &self.name);
            let _ = append(&self.tracefs.join("dynamic_events"), &format!("-:{event}"));
        }
        let _ = fs::remove_dir(self.instance());
    }
}

/// The beginning of the names of histograms that belong to this namespace of processes.
fn namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let number: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    format!("{PREFIX}{number}_")
}

/// Removes the histograms of recorders that were killed.
fn remove_left(tracefs: &Path, namespace: &str) {
    let instances = fs::read_dir(tracefs.join("instances")).into_iter().flatten().flatten();
    let instances = instances.filter_map(|entry| entry.file_name().into_string().ok());
    // A recorder makes its instance first, and removes it last.
    for name in instances {
        let pid =
            name.strip_prefix(namespace).and_then(|rest| rest.split('_').next()?.parse().ok());
        let lives =
            |pid: u32| pid != std::process::id() && Path::new(&format!("/proc/{pid}")).exists();
        if pid.is_some_and(|pid| !lives(pid)) {
            drop(Histogram { tracefs: tracefs.to_owned(), name });
        }
    }
}

fn append(file: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().append(true).open(file)?.write_all(line.as_bytes())
}

/// Sums the rows of a `hist` file, such as `{ common_pid: 7, kind: 4, latency: ~ 2^14 } hitcount: 49`.
fn parse(text: &str, threads: &HashSet<u32>) -> Latencies {
    let mut latencies = Latencies { buckets: Vec::new(), uncounted: dropped(text) };
    for line in text.lines() {
        let numbers = line.split(|byte: char| !byte.is_ascii_digit());
        let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
        let [tid, kind, 2, power @ 0..=63, faults] = numbers[..] else { continue };
        if !line.starts_with('{') || !threads.contains(&(tid as u32)) {
            continue;
        }
        let is_major = kind as u32 & KIND_MAJOR != 0;
        let severity = if is_major { Severity::Major } else { Severity::Minor };
        let in_user_mode = kind as u32 & KIND_USER != 0;
        let up_to_ns = 1 << power;
        latencies.add(LatencyBucket { in_user_mode, severity, up_to_ns, faults });
    }
    latencies
}

/// The entries that histograms had no room for.
fn dropped(text: &str) -> u64 {
    let numbers = text.lines().filter_map(|line| line.trim().strip_prefix("Dropped:"));
    numbers.filter_map(|number| number.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_other_threads_are_left_out_and_tries_are_one_kind() {
        let text = "# event histogram\n#\n# trigger info: hist:keys=common_pid,kind,latency.log2 [active]\n#\n\n\
            { common_pid:        152, kind:          4, latency: ~ 2^13 } hitcount:          3\n\
            { common_pid:        153, kind:          4, latency: ~ 2^13 } hitcount:          2\n\
            { common_pid:        153, kind:          3, latency: ~ 2^20 } hitcount:          5\n\
            { common_pid:        152, kind:          2, latency: ~ 2^20 } hitcount:          1\n\
            { common_pid:          9, kind:          4, latency: ~ 2^13 } hitcount:         70\n\n\
            Totals:\n    Hits: 81\n    Entries: 5\n    Dropped: 4\n";
        let found = parse(text, &HashSet::from([152, 153]));
        let bucket = |in_user_mode, severity, up_to_ns, faults| LatencyBucket {
            in_user_mode,
            severity,
            up_to_ns,
            faults,
        };
        let buckets = vec![
            bucket(true, Severity::Minor, 8192, 5),
            bucket(false, Severity::Major, 1 << 20, 6),
        ];
        assert_eq!(found, Latencies { buckets, uncounted: 4 });
    }
}
