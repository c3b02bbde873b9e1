//! Takes from this process all rights that a server does not need: it reads files that others wrote.
//!
//! | | what is left |
//! | --- | --- |
//! | capabilities | `CAP_DAC_READ_SEARCH`, if it was there |
//! | files that it reads | those in the folders of its images, `/proc` and `/sys` |
//! | files that it writes | memory of its own, `/dev/userfaultfd`, and the folder of its socket, from which it removes |
//! | the network, programs, signals | none; with images at URLs: connections |
//!
//! By Landlock (`landlock(7)`, Linux 5.13) and `no_new_privs`; each kernel enforces what it knows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cowslip_sys::capabilities::{self, CapabilitySet};
use cowslip_sys::{Errno, OwnedFd, tmpfs};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

const KNOWN: ABI = ABI::V6;
const READ: [&str; 2] = ["/proc", "/sys"];
/// Further ones for connections: names of hosts, certificates, and the libraries that look them up.
const READ_FOR_URLS: [&str; 4] = ["/etc", "/lib", "/usr", "/run/systemd/resolve"];
/// The beginnings of environment variables that may name a file with a certificate or a key.
const VARIABLES_FOR_URLS: [&str; 4] = ["AWS_", "AZURE_", "GOOGLE_", "SSL_CERT_"];
const DEVICE: &str = "/dev/userfaultfd";

/// What a server reads and writes.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Images in files.
    pub images: Vec<PathBuf>,
    /// The folder of images at URLs, if there are any.
    pub cache: Option<PathBuf>,
    /// The socket that it removes in the end.
    pub socket: Option<PathBuf>,
}

/// Confines this thread, and those that it starts, for good. It is called before there are others.
/// `tell` gets what the kernel cannot do for a log: without Landlock only capabilities are gone.
///
/// # Errors
/// The kernel's.
pub fn confine(needs: &Needs, tell: fn(&str)) -> io::Result<()> {
    // Needs a capability, so it is made now.
    let memory = tmpfs::directory();
    if let Err(errno) = &memory
        && tmpfs::may_mount()
    {
        let why = match *errno {
            Errno::INVAL | Errno::NOSYS => {
                "this kernel clones no mount for reading only, Linux 6.15 does".to_owned()
            }
            errno => format!("a read-only clone of its mount: {}", io::Error::from(errno)),
        };
        tell(&format!(
            "no tmpfs of the server's own ({why}): images are kept in memfds, on huge pages only as \
             /sys/kernel/mm/transparent_hugepage/shmem_enabled allows"
        ));
    }
    let kept = capabilities::effective()? & CapabilitySet::DAC_READ_SEARCH;
    capabilities::give_up_all_but(kept)?;
    let status = enforce(needs, memory.ok()).map_err(io::Error::other)?;
    if status == RulesetStatus::NotEnforced {
        tell("this kernel has no Landlock: the server may read all that its user may");
    }
    Ok(())
}

fn enforce(needs: &Needs, memory: Option<OwnedFd>) -> Result<RulesetStatus, RulesetError> {
    let (read, all) = (AccessFs::from_read(KNOWN) & !AccessFs::Execute, AccessFs::from_all(KNOWN));
    let mut rules = Ruleset::default().handle_access(all)?.scope(Scope::from_all(KNOWN))?;
    if needs.cache.is_none() {
        rules = rules.handle_access(AccessNet::from_all(KNOWN))?;
    }
    let mut rules = rules.create()?;
    for place in readable(needs) {
        rules = allow(rules, &place, read)?;
    }
    if let Some(cache) = &needs.cache {
        rules = allow(rules, cache, all & !AccessFs::Execute)?;
    }
    if let Some(folder) = needs.socket.as_deref().and_then(folder_of) {
        rules = allow(rules, &folder, AccessFs::RemoveFile.into())?;
    }
    let writes = AccessFs::ReadFile | AccessFs::WriteFile;
    rules = allow(rules, Path::new(DEVICE), writes | AccessFs::IoctlDev)?;
    if let Some(memory) = memory {
        let names = AccessFs::MakeReg | AccessFs::RemoveFile;
        rules = rules.add_rule(PathBeneath::new(memory, writes | AccessFs::Truncate | names))?;
    }
    // Sets `no_new_privs`, too.
    Ok(rules.restrict_self()?.ruleset)
}

fn readable(needs: &Needs) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = READ.iter().map(PathBuf::from).collect();
    // Parents of an image lie beside it, and beside what a link to it leads to.
    let folders = needs.images.iter().flat_map(|image| {
        let there = fs::canonicalize(image).ok();
        [folder_of(image), there.as_deref().and_then(folder_of)]
    });
    places.extend(folders.flatten());
    if needs.cache.is_some() {
        places.extend(READ_FOR_URLS.map(PathBuf::from));
        let is_for_stores = |name: &std::ffi::OsStr| {
            let name = name.to_string_lossy();
            VARIABLES_FOR_URLS.iter().any(|begin| name.starts_with(begin))
        };
        let named = std::env::vars_os().filter(|(name, _)| is_for_stores(name));
        places.extend(
            named.map(|(_, value)| value.into()).filter(|path: &PathBuf| path.is_absolute()),
        );
        places.extend(std::env::home_dir().map(|home| home.join(".config/gcloud")));
    }
    places
}

fn folder_of(file: &Path) -> Option<PathBuf> {
    let folder = file.parent()?;
    Some(if folder.as_os_str().is_empty() { ".".into() } else { folder.to_owned() })
}

/// Allows this beneath a place, or of a file; a place that is missing stays forbidden.
fn allow(
    rules: RulesetCreated,
    place: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    match PathFd::new(place) {
        Ok(fd) => rules.add_rule(PathBeneath::new(fd, access)),
        Err(_) => Ok(rules),
    }
}
