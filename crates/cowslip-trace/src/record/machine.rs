//! The header's description of the machine and of the program's circumstances.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cowslip_sys::units::page_size_bytes;
use cowslip_sys::{fault_cost, procfs};

use super::subject::Subject;
use crate::model::{Header, Machine};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// Kernel options that affect the cost of memory.
const CONFIG: [&str; 20] = [
    "ANON_VMA_NAME",
    "COMPACTION",
    "DAMON",
    "HUGETLB",
    "KSM",
    "LRU_GEN",
    "MEMCG",
    "MIGRATION",
    "MITIGATION",
    "NUMA",
    "PAGE_",
    "PER_VMA_LOCK",
    "PREEMPT",
    "READ_ONLY_THP_FOR_FS",
    "SHMEM",
    "SLUB",
    "SWAP",
    "THP",
    "TRANSPARENT_HUGEPAGE",
    "USERFAULTFD",
];

const SYSCTL: [&str; 16] = [
    "kernel/numa_balancing",
    "kernel/randomize_va_space",
    "vm/compaction_proactiveness",
    "vm/dirty_background_ratio",
    "vm/dirty_ratio",
    "vm/max_map_count",
    "vm/min_free_kbytes",
    "vm/nr_hugepages",
    "vm/nr_overcommit_hugepages",
    "vm/overcommit_memory",
    "vm/overcommit_ratio",
    "vm/page-cluster",
    "vm/swappiness",
    "vm/unprivileged_userfaultfd",
    "vm/vfs_cache_pressure",
    "vm/zone_reclaim_mode",
];

/// Beginnings of names of variables that change a program's memory.
const VARIABLES: [&str; 17] = [
    "COWSLIP_",
    "GLIBC_TUNABLES",
    "GODEBUG",
    "GOGC",
    "GOMEMLIMIT",
    "HUGETLB_",
    "JAVA_TOOL_OPTIONS",
    "JEMALLOC_",
    "JE_MALLOC_CONF",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MALLOC_",
    "MIMALLOC_",
    "PYTHONMALLOC",
    "SNMALLOC_",
    "TCMALLOC_",
    "THP_",
];

/// Parts of the names of libraries with an allocator; the first one that is mapped counts.
const ALLOCATORS: [(&str, &str); 9] = [
    ("libcowslip_malloc", "jemalloc (cowslip run)"),
    ("libjemalloc", "jemalloc"),
    ("libtcmalloc", "tcmalloc"),
    ("libmimalloc", "mimalloc"),
    ("libsnmalloc", "snmalloc"),
    ("libhoard", "hoard"),
    ("ld-musl", "musl"),
    ("libc.so", "glibc"),
    ("libc-2", "glibc"),
];

/// The time since 1970.
pub(super) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The header for running programs; facts that this process may not read are left out.
pub(super) fn header_of(subject: &Subject, pids: &[i32]) -> Header {
    let attached_pids = pids.iter().map(|pid| pid.unsigned_abs()).collect();
    if !matches!(subject, Subject::Processes(_)) {
        return Header { subject: Some(subject.to_string()), attached_pids, ..common() };
    }
    let first = pids.first().copied().unwrap_or_default();
    let read = |name: &str| fs::read(format!("/proc/{first}/{name}")).unwrap_or_default();
    let command = texts(&read("cmdline")).collect();
    let maps = String::from_utf8_lossy(&read("maps")).into_owned();
    let environment = texts(&read("environ")).filter_map(variable).collect();
    let allocator = allocator(&maps).map(str::to_owned);
    Header { command, attached_pids, environment, allocator, ..common() }
}

/// The header for a command that this process will run, with its own environment.
pub(super) fn header_of_own() -> Header {
    let all = std::env::vars_os()
        .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()));
    Header { environment: all.filter_map(variable).collect(), ..common() }
}

fn common() -> Header {
    Header {
        machine: machine(),
        base_fault_ns: fault_cost::base_page_ns().ok(),
        huge_fault_ns: fault_cost::huge_page_ns().ok(),
        ..Header::default()
    }
}

fn machine() -> Machine {
    let line = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    let kernel_release = line("/proc/sys/kernel/osrelease").unwrap_or_default();
    let processors = line("/proc/cpuinfo").unwrap_or_default();
    let memory = line("/proc/meminfo").unwrap_or_default();
    Machine {
        kernel_config: kernel_config(&kernel_release),
        kernel_release,
        kernel_version: line("/proc/sys/kernel/version").unwrap_or_default(),
        architecture: std::env::consts::ARCH.into(),
        thp: settings(Path::new(THP), ""),
        sysctl: SYSCTL
            .iter()
            .filter_map(|name| Some((name.replace('/', "."), line(&format!("/proc/sys/{name}"))?)))
            .collect(),
        cpu_model: field(&processors, "model name").unwrap_or_default().into(),
        cpus: std::thread::available_parallelism().map_or(0, |count| count.get() as u32),
        memory_bytes: procfs::field_bytes(&memory, "MemTotal").unwrap_or(0),
        page_bytes: page_size_bytes() as u64,
    }
}

/// The text after `name` and a colon in the first line that begins with them.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then_some(value.trim())
    })
}

/// The settings of one line in a directory of sysfs and below it; statistics are left out.
fn settings(directory: &Path, prefix: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name() != "stats" {
                all.extend(settings(&entry.path(), &format!("{name}/")));
            }
        } else if let Ok(text) = fs::read_to_string(entry.path())
            && text.lines().count() == 1
            && !["pages_collapsed", "full_scans"].iter().any(|suffix| name.ends_with(suffix))
        {
            all.insert(name, text.trim().to_owned());
        }
    }
    all
}

fn kernel_config(release: &str) -> BTreeMap<String, String> {
    let mut text = String::new();
    let packed = fs::File::open("/proc/config.gz");
    let unpacked =
        packed.and_then(|file| flate2::read::GzDecoder::new(file).read_to_string(&mut text));
    if unpacked.is_err() {
        text = fs::read_to_string(format!("/boot/config-{release}")).unwrap_or_default();
    }
    memory_options(&text)
}

fn memory_options(config: &str) -> BTreeMap<String, String> {
    let option = |line: &str| {
        let (name, value) = match line.strip_prefix("# ") {
            Some(absent) => (absent.strip_suffix(" is not set")?, "n"),
            None => line.split_once('=')?,
        };
        let matters = |name: &str| CONFIG.iter().any(|part| name.contains(part));
        let matters = name.strip_prefix("CONFIG_").is_some_and(matters);
        matters.then(|| (name.to_owned(), value.to_owned()))
    };
    config.lines().filter_map(option).collect()
}

/// Texts that end with zero bytes.
fn texts(bytes: &[u8]) -> impl Iterator<Item = String> {
    let all = bytes.split(|&byte| byte == 0).filter(|text| !text.is_empty());
    all.map(|text| String::from_utf8_lossy(text).into_owned())
}

fn variable(text: String) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    let matters = VARIABLES.iter().any(|prefix| name.starts_with(prefix));
    matters.then(|| (name.to_owned(), value.to_owned()))
}

fn allocator(maps: &str) -> Option<&'static str> {
    ALLOCATORS.iter().find(|(library, _)| maps.contains(library)).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_describes_itself() {
        let machine = machine();
        assert!(machine.memory_bytes > 1 << 20 && machine.cpus > 0, "{machine:?}");
        assert!(!machine.kernel_release.is_empty() && !machine.sysctl.is_empty());
    }

    #[test]
    fn options_of_memory_are_kept_and_absent_ones_are_told() {
        let text = "CONFIG_TRANSPARENT_HUGEPAGE=y\n# CONFIG_TRANSPARENT_HUGEPAGE_ALWAYS is not set\n\
                    CONFIG_USB=y\n# a comment\nCONFIG_SWAP=y\n";
        let options: Vec<_> = memory_options(text).into_iter().collect();
        let wanted =
            [("SWAP", "y"), ("TRANSPARENT_HUGEPAGE", "y"), ("TRANSPARENT_HUGEPAGE_ALWAYS", "n")];
        assert_eq!(
            options,
            wanted.map(|(name, value)| (format!("CONFIG_{name}"), value.to_owned()))
        );
    }

    #[test]
    fn the_first_allocator_that_is_there_is_it() {
        assert_eq!(allocator("… /lib/libc.so.6\n… /lib/libjemalloc.so.2"), Some("jemalloc"));
        assert_eq!(allocator("… /bin/static"), None);
        assert_eq!(variable("MALLOC_CONF=a=b".into()), Some(("MALLOC_CONF".into(), "a=b".into())));
        assert_eq!(variable("HOME=/".into()), None);
    }
}
