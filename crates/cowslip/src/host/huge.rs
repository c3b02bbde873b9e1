//! Probes of huge pages: which memory gets them, and the cost of the first touch of one.

use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::memory::{Advice, Sharing};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::CHUNK_BYTES;
use cowslip_sys::{AsFd, BorrowedFd, Errno, procfs, tmpfs};

use super::capability::{Capability, Need};
use super::hints::{ALLOW_ANONYMOUS_HUGE, allow_shmem_huge};
use super::outcome::{ProbeResult, Proof, Refusal, median, timed};
use super::privileges::{OwnProcess, usage_of};
use super::scratch::Scratch;
use crate::mapping::OwnSpace;

const ANONYMOUS_SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const FREE_POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
const CHUNK: u64 = CHUNK_BYTES as u64;

pub(super) fn probe(own: &OwnProcess) -> Vec<Capability> {
    use Need::{Extra, HugePages};
    let new = Capability::new;
    let explain = |outcome: ProbeResult| match own.huge_pages_enabled {
        Some(false) => outcome.map_err(|_| disabled()),
        _ => outcome,
    };
    let enabled = match own.huge_pages_enabled {
        Some(false) => Err(disabled()),
        Some(true) => Ok(Proof::saw("not disabled by prctl(PR_SET_THP_DISABLE)")),
        None => Ok(Proof::saw("this kernel does not say whether a prctl disabled them")),
    };
    vec![
        new("huge-tmpfs", HugePages, "huge arenas, whatever the settings", explain(tmpfs())),
        new("huge-memfd", HugePages, "huge arenas, without privileges", explain(memfd())),
        new("process-thp", Extra, "huge pages for this process at all", enabled),
        new("huge-anonymous", Extra, "huge pages outside arenas", explain(anonymous())),
        new(
            "collapse-anonymous",
            Extra,
            "make memory huge afterwards",
            explain(collapse_anonymous()),
        ),
        new("collapse-shmem", Extra, "make file memory huge afterwards", explain(collapse_shmem())),
        new("hugetlb-pool", Extra, "arenas on hugetlb pages (library)", pool()),
    ]
}

fn disabled() -> Refusal {
    Refusal::denied(
        "prctl(PR_SET_THP_DISABLE) is in force",
        "this process, or one it descends from, disabled huge pages for itself: start it from \
         another shell or service",
    )
}

fn tmpfs() -> ProbeResult {
    let file = ReservedFd::open(|| tmpfs::huge_file(CHUNK)).map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => Refusal::denied(
            "a tmpfs of our own may not be mounted",
            "it needs CAP_SYS_ADMIN; a setting that gives memfds huge pages replaces it",
        )
        .fix(allow_shmem_huge()),
        _ => Refusal::or_unsupported(errno),
    })?;
    let memory = Scratch::of_file(file.as_fd(), Sharing::Shared)?;
    let ns = first_touch_of_file(&memory, file.as_fd())?;
    if usage_of(memory.range()).shmem_huge_bytes < CHUNK {
        return Err(Refusal::unknown(0, "the file got base pages: no free memory in one piece?"));
    }
    Ok(Proof::saw("mapped by one entry").costing(ns, "to touch 2 MiB"))
}

fn memfd() -> ProbeResult {
    let file = memfd_probe(MemfdKind::Shmem)?;
    let memory = Scratch::of_file(file.as_fd(), Sharing::Shared)?;
    let ns = match memory.advise(Advice::HugePage) {
        Ok(()) => first_touch_of_file(&memory, file.as_fd())?,
        Err(errno) => return Err(Refusal::or_unsupported(errno)),
    };
    let setting = Setting::read(procfs::SHMEM_ENABLED)?;
    if usage_of(memory.range()).shmem_huge_bytes < CHUNK {
        return Err(setting.refused(&allow_shmem_huge()));
    }
    Ok(Proof::saw(setting.text()).costing(ns, "to touch 2 MiB"))
}

fn anonymous() -> ProbeResult {
    let memory = Scratch::anonymous()?;
    memory.advise(Advice::HugePage).map_err(Refusal::or_unsupported)?;
    let ns = median(|| {
        memory.advise(Advice::DontNeed)?;
        touch(&memory)
    })?;
    let setting = Setting::read(ANONYMOUS_SETTING)?;
    if usage_of(memory.range()).huge_bytes < CHUNK {
        return Err(setting.refused(ALLOW_ANONYMOUS_HUGE));
    }
    Ok(Proof::saw(setting.text()).costing(ns, "to touch 2 MiB"))
}

fn collapse_anonymous() -> ProbeResult {
    collapse(&Scratch::anonymous()?)
}

fn collapse_shmem() -> ProbeResult {
    let file = memfd_probe(MemfdKind::Shmem)?;
    collapse(&Scratch::of_file(file.as_fd(), Sharing::Shared)?)
}

fn collapse(memory: &Scratch) -> ProbeResult {
    memory.advise(Advice::NoHugePage).map_err(Refusal::or_unsupported)?;
    memory.touch();
    memory.advise(Advice::HugePage)?;
    let ((), ns) = timed(|| memory.advise(Advice::Collapse)).map_err(Refusal::or_unsupported)?;
    memory.touch();
    if usage_of(memory.range()).huge_mapped_bytes() < CHUNK {
        return Err(Refusal::unknown(0, "madvise(MADV_COLLAPSE) succeeded and left base pages"));
    }
    Ok(Proof::saw("").costing(ns, "a chunk"))
}

fn pool() -> ProbeResult {
    let file = memfd_probe(MemfdKind::Hugetlb2M).map_err(Refusal::or_unsupported)?;
    let free = std::fs::read_to_string(FREE_POOL).unwrap_or_default();
    let free = format!("{} free pages of 2 MiB", free.trim());
    match OwnSpace::of_hugetlb(CHUNK_BYTES, file.as_fd(), 0, Sharing::Shared) {
        Ok(page) => {
            page.unmap()?;
            Ok(Proof::saw(free))
        }
        Err(Errno::NOMEM) => Err(Refusal::denied(free, "the pool has no page to spare")
            .fix("sysctl -w vm.nr_hugepages=512")),
        Err(errno) => Err(errno.into()),
    }
}

fn memfd_probe(kind: MemfdKind) -> Result<ReservedFd, Errno> {
    ReservedFd::open(|| memfile::memfd("cowslip-probe", kind, CHUNK))
}

/// The cost of the first touch when the machine has free memory at hand.
fn first_touch_of_file(memory: &Scratch, file: BorrowedFd<'_>) -> Result<u64, Errno> {
    memory.touch();
    median(|| {
        memfile::punch_hole(file, 0, CHUNK)?;
        touch(memory)
    })
}

fn touch(memory: &Scratch) -> Result<u64, Errno> {
    timed(|| {
        memory.touch();
        Ok(())
    })
    .map(|((), ns)| ns)
}

/// One of the settings of transparent huge pages.
struct Setting {
    path: &'static str,
    word: String,
}

impl Setting {
    fn read(path: &'static str) -> Result<Self, Refusal> {
        let line = std::fs::read_to_string(path)
            .map_err(|_| Refusal::unsupported("built without transparent huge pages"))?;
        Ok(Self { path, word: procfs::chosen(&line).unwrap_or(line.trim()).to_owned() })
    }

    fn text(&self) -> String {
        let name = self.path.rsplit('/').next().unwrap_or(self.path);
        format!("{name} is {}", self.word)
    }

    fn refused(&self, fix: &str) -> Refusal {
        if matches!(self.word.as_str(), "never" | "deny") {
            return Refusal::denied("base pages came", self.text()).fix(fix);
        }
        Refusal::unknown(
            0,
            format!("{}, and base pages came: no memory in one piece?", self.text()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_told_from_bad_luck() {
        let with = |word: &str| {
            let setting = Setting { path: procfs::SHMEM_ENABLED, word: word.to_owned() };
            Capability::new("", Need::Extra, "", Err(setting.refused("fix it")))
        };
        assert_eq!(with("never").fix.as_deref(), Some("fix it"));
        assert_eq!(with("never").answer.word(), "denied");
        assert_eq!(with("advise").answer.word(), "unknown");
        assert_eq!(with("advise").fix, None);
    }

    #[test]
    fn who_disabled_huge_pages_is_told_so() {
        let own = OwnProcess { huge_pages_enabled: Some(false), ..OwnProcess::look() };
        let all = probe(&own);
        let named = |name| all.iter().find(|capability| capability.name == name).unwrap();
        assert_eq!(named("process-thp").answer.word(), "denied");
    }
}
