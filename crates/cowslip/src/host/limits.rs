//! Limits and settings that explain the behaviour here.

use std::fs;

use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::memory::{Prot, Sharing};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::{ByteCount, CHUNK_BYTES};
use cowslip_sys::{AsFd, Errno, cgroup, procfs};

use super::capability::{Capability, Need};
use super::outcome::{ProbeResult, Proof, Refusal};
use super::privileges::OwnProcess;
use super::scratch::Scratch;
use super::{Answer, memory_and_swap};

pub(super) fn probe(
    own: &OwnProcess,
    faults: &[Capability],
    huge: &[Capability],
) -> Vec<Capability> {
    use Need::{Extra, Full};
    let new = Capability::new;
    let refused: Vec<_> =
        faults.iter().chain(huge).filter(|capability| is_refused(capability)).collect();
    vec![
        new("private-copies", Full, "freeze as much as all memory", private_copies()),
        new("mappings", Extra, "one for each protection in an arena", mappings()),
        new("memory-limit", Extra, "private copies count against it", memory_limit()),
        new("system-calls", Extra, "no seccomp filter in the way", filter(own, &refused)),
        new("swap", Extra, "absent pages may be private copies", swap()),
    ]
}

/// Returns true for a refusal that a filter of system calls could cause.
fn is_refused(capability: &Capability) -> bool {
    matches!(capability.name, "userfaultfd" | "huge-tmpfs")
        && matches!(capability.answer, Answer::Denied { .. })
}

/// Privately maps as much as all memory and swap, without touching it.
fn private_copies() -> ProbeResult {
    let size = memory_and_swap();
    let chunks = usize::try_from(size.0).map_err(|_| Errno::NOMEM)? / CHUNK_BYTES;
    let file =
        ReservedFd::open(|| memfile::memfd("cowslip-probe", MemfdKind::Shmem, CHUNK_BYTES as u64))?;
    let setting = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    let setting = format!("vm.overcommit_memory is {}", setting.trim());
    let mapped = Scratch::reserve(chunks)
        .and_then(|place| place.map_file(file.as_fd(), Sharing::Private, Prot::RW));
    match mapped {
        Ok(()) => Ok(Proof::saw(format!("{setting}; {size} of memory and swap"))),
        Err(Errno::NOMEM) if setting.ends_with('2') => {
            let hint = "every private mapping is charged against CommitLimit, see /proc/meminfo";
            Err(Refusal::denied(setting, hint).fix("sysctl -w vm.overcommit_memory=0"))
        }
        Err(Errno::NOMEM) => {
            Err(Refusal::denied(setting, "address space is limited, see RLIMIT_AS (`ulimit -v`)")
                .fix("ulimit -v unlimited"))
        }
        Err(errno) => Err(errno.into()),
    }
}

fn mappings() -> ProbeResult {
    let most = fs::read_to_string("/proc/sys/vm/max_map_count")
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(Proof::saw(format!("vm.max_map_count is {}", most.trim())))
}

fn memory_limit() -> ProbeResult {
    // A limit above the machine's memory is none; version 1 reports 2^63 for it.
    let limit = cgroup::memory_limit().filter(|group| group.limit_bytes < memory_and_swap().0);
    Ok(Proof::saw(limit.map_or("no control group limits it".to_owned(), |group| {
        let (used, limit) = (ByteCount(group.used_bytes), ByteCount(group.limit_bytes));
        format!("{used} of the {limit} of a control group are used")
    })))
}

fn filter(own: &OwnProcess, refused: &[&Capability]) -> ProbeResult {
    let names: Vec<_> = refused.iter().map(|capability| capability.name).collect();
    if !own.is_filtered {
        return Ok(Proof::saw("no filter is in force"));
    }
    if names.is_empty() {
        return Ok(Proof::saw("a filter is in force, and lets us through"));
    }
    let names = format!("a filter is in force; refused: {}", names.join(", "));
    if own.effective_uid != 0 || !refused.iter().any(|capability| capability.name == "userfaultfd")
    {
        return Ok(Proof::saw(format!("{names}, for want of a privilege or by the filter")));
    }
    let hint = "this is root and still refused, as in a container with Docker's default profile: \
        give it one that allows what is missing";
    Err(Refusal::denied(names, hint).fix("docker run --security-opt seccomp=PROFILE.json …"))
}

fn swap() -> ProbeResult {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Ok(Proof::saw(match procfs::field_bytes(&meminfo, "SwapTotal") {
        Some(0) => "none".to_owned(),
        Some(bytes) => ByteCount(bytes).to_string(),
        None => "/proc/meminfo does not say".to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_blamed_when_root_is_refused() {
        let refused = |name| {
            let no = Refusal::denied("EPERM", "somebody is in the way");
            Capability::new(name, Need::Full, "", Err(no))
        };
        let (userfaultfd, tmpfs) = (refused("userfaultfd"), refused("huge-tmpfs"));
        assert!(is_refused(&userfaultfd) && is_refused(&tmpfs) && !is_refused(&refused("markers")));
        let own = |is_filtered, effective_uid| OwnProcess {
            is_filtered,
            effective_uid,
            ..OwnProcess::default()
        };
        assert!(filter(&own(true, 0), &[&userfaultfd]).is_err());
        assert!(filter(&own(true, 0), &[&tmpfs]).is_ok());
        assert!(filter(&own(true, 0), &[]).is_ok());
        assert!(filter(&own(true, 1000), &[&userfaultfd]).is_ok());
        assert!(filter(&own(false, 0), &[&userfaultfd]).is_ok());
    }
}
