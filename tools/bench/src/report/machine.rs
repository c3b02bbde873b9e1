//! Facts about the machine that a reader needs to compare numbers. A fact that cannot be read is null.

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;
use std::time::{SystemTime, UNIX_EPOCH};

use cowslip_sys::procfs::{chosen, field_bytes};
use serde_json::{Map, Value, json};

pub(super) fn facts() -> Map<String, Value> {
    let read = |path| fs::read_to_string(path).ok();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let thp = |name: &str| {
        let setting = read(format!("/sys/kernel/mm/transparent_hugepage/{name}"))?;
        chosen(&setting).map(str::to_owned)
    };
    let cpuinfo = read("/proc/cpuinfo".into()).unwrap_or_default();
    let meminfo = read("/proc/meminfo".into()).unwrap_or_default();
    let facts = [
        ("date", json!(rfc3339(now))),
        ("cowslip_version", json!(env!("CARGO_PKG_VERSION"))),
        ("commit", json!(commit())),
        (
            "kernel_release",
            json!(read("/proc/sys/kernel/osrelease".into()).map(|text| text.trim().to_owned())),
        ),
        ("cpu_model", json!(field(&cpuinfo, "model name"))),
        ("cpus", json!(available_parallelism().ok().map(usize::from))),
        ("memory_bytes", json!(field_bytes(&meminfo, "MemTotal"))),
        ("thp_enabled", json!(thp("enabled"))),
        ("thp_shmem_enabled", json!(thp("shmem_enabled"))),
    ];
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The commit of the sources that this program was built in, with `-dirty` after changes of them: pages of results may
/// change from one bench to the next.
fn commit() -> Option<String> {
    let git = |words: &[&str]| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let output = Command::new("git").args(["-C", root]).args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--", "crates", "tools", "Cargo.lock"])?;
    Some(if changes.is_empty() { commit } else { commit + "-dirty" })
}

/// The value after the colon on the first line that begins with `name`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// UTC, by the civil calendar of years that begin in March, so that a leap day ends its year.
fn rfc3339(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let since_0000_march = days + 719_468;
    let (era, day_of_era) = (since_0000_march / 146_097, since_0000_march % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(1_767_225_599), "2025-12-31T23:59:59Z");
    }
}
