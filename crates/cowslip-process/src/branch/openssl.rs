//! OpenSSL's random numbers in copies.
//!
//! OpenSSL draws fresh random bytes of the kernel in a process that it has not drawn in before, which it knows by `getpid(2)`
//! (`openssl_get_fork_id`). A copy has the program's number, in a namespace of its own, and would go on with the numbers of all
//! others. In a copy, OpenSSL is therefore told another number:
//!
//! ```text
//!  libcrypto.so     call getpid ─▶ its slot ───────────────────────┐
//!  a program that   openssl_get_fork_id: jmp getpid ───────────────┤ is changed in the copy's memory alone
//!  has it inside                                                   ▼
//!                                         stub: getpid() ^ a number of the copy's own
//! ```
//! The copy's children have other numbers than the copy, as they should. libcrypto calls `getpid` there, and for the bytes that
//! make a nonce unique (`ossl_pool_add_nonce_data`), nowhere else. Programs and libraries with an OpenSSL inside, as Node and
//! Python's `cryptography`, may call it for other purposes; their function is found by its symbol. Without one, and where it
//! is more than a jump, they are left as they are.

use cowslip_sys::procfs::mappings;
use cowslip_sys::target::Target;
use cowslip_sys::units::page_size_bytes;
use cowslip_sys::{BorrowedFd, Errno, Result, memfile, process};
use libc::{
    MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, PROT_EXEC, PROT_READ, SYS_getpid, SYS_mmap,
};

use super::caller::Caller;
use crate::loaded::Loaded;

/// `endbr64`, the first instruction of functions in some builds.
const LANDING: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `jmp` to an address at most 2 GiB away, and the bytes of the instruction.
const JUMP: u8 = 0xe9;
const JUMP_BYTES: u64 = 5;
/// A bit of a number that no process has: they are below 2^22.
const NO_PROCESS: u32 = 1 << 30;

/// The places at which OpenSSL asks for the number of its process.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Slots with the address of `getpid`.
    slots: Vec<u64>,
    /// Jumps to it, each with the address of free memory near enough.
    jumps: Vec<(u64, u64)>,
}

impl Places {
    /// Finds them in the memory of a process.
    pub(crate) fn find(target: &Target, maps: &str, memory: BorrowedFd<'_>) -> Self {
        const NAME: &str = "openssl_get_fork_id";
        let mut places = Self::default();
        for loaded in Loaded::all(maps, memory) {
            if is_of_openssl(loaded.name) {
                places.slots.extend(loaded.slots("getpid").unwrap_or_default());
                continue;
            }
            let function = loaded.function(NAME).or_else(|| loaded.hidden_function(target, NAME));
            if let Some(function) = function
                && let Some(jump) = only_jump(memory, function)
                && let Some(free) = free_page_near(maps, jump, &places.jumps)
            {
                places.jumps.push((jump, free));
            }
        }
        places
    }

    /// Has a copy, which does not run yet, answer there with a number of its own.
    pub(crate) fn redirect(&self, copy: &mut Caller<'_>, memory: BorrowedFd<'_>) -> Result<()> {
        let mut random = [0; 4];
        process::fill_random(&mut random)?;
        let own = NO_PROCESS | u32::from_ne_bytes(random) & (NO_PROCESS - 1);
        if !self.slots.is_empty() {
            let stub = add_stub(copy, memory, None, own)?;
            for slot in &self.slots {
                memfile::write_at(memory, &stub.to_ne_bytes(), *slot)?;
            }
        }
        for (jump, free) in &self.jumps {
            let stub = add_stub(copy, memory, Some(*free), own)?;
            let distance = stub.wrapping_sub(jump + JUMP_BYTES) as i32;
            memfile::write_at(memory, &distance.to_ne_bytes(), jump + 1)?;
        }
        Ok(())
    }
}

/// Returns true for the path of a library that is a part of OpenSSL. Packages of Python's have it as `libcrypto-0123abcd.so.3`.
fn is_of_openssl(path: &str) -> bool {
    let name = path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or_default();
    name.starts_with("libcrypto.so") || name.starts_with("libcrypto-") || name == "fips.so"
}

/// The address of the jump that is all of a function.
fn only_jump(memory: BorrowedFd<'_>, function: u64) -> Option<u64> {
    let mut code = [0; LANDING.len() + 1];
    memfile::read_exact_at(memory, &mut code, function).ok()?;
    match code {
        [JUMP, ..] => Some(function),
        [landing @ .., JUMP] if landing == LANDING => Some(function + LANDING.len() as u64),
        _ => None,
    }
}

/// The highest free page below the file that has the code, where no heap grows to.
fn free_page_near(maps: &str, code: u64, taken: &[(u64, u64)]) -> Option<u64> {
    /// Not all of the 2 GiB: the end of the page counts, too.
    const FARTHEST_BYTES: u64 = (1 << 31) - (1 << 20);
    /// `vm.mmap_min_addr`, at most.
    const LOWEST: u64 = 1 << 16;
    let page = page_size_bytes() as u64;
    let ends: Vec<_> = mappings(maps).map(|mapping| mapping.range.end() as u64).collect();
    let starts = mappings(maps).map(|mapping| mapping.range.start as u64);
    let gaps = std::iter::once(LOWEST).chain(ends).zip(starts);
    let fits = |at: &u64| {
        code.abs_diff(*at) <= FARTHEST_BYTES && taken.iter().all(|(_, other)| other != at)
    };
    let below = gaps.filter(|(end, start)| *start <= code && end + page <= *start);
    below.map(|(_, start)| start - page).filter(fits).last()
}

/// Adds a function to a copy that returns the number of the process, mixed with the copy's own, and returns its address.
fn add_stub(
    copy: &mut Caller<'_>,
    memory: BorrowedFd<'_>,
    at: Option<u64>,
    own: u32,
) -> Result<u64> {
    const CALL: [u8; 2] = [0x0f, 0x05];
    const MOVE_TO_EAX: u8 = 0xb8;
    const XOR_EAX: u8 = 0x35;
    const RETURN: u8 = 0xc3;
    let fixed = if at.is_some() { MAP_FIXED_NOREPLACE } else { 0 };
    let flags = (MAP_PRIVATE | MAP_ANONYMOUS | fixed) as u64;
    let (at, len) = (at.unwrap_or(0), page_size_bytes() as u64);
    // Never writable for the copy itself, which some programs forbid for code.
    let protection = (PROT_READ | PROT_EXEC) as u64;
    let stub = copy.call(SYS_mmap, &[at, len, protection, flags, !0, 0])?;
    if fixed != 0 && stub != at {
        // Before Linux 4.17 the flag is not known.
        return Err(Errno::EXIST);
    }
    let number = (SYS_getpid as u32).to_ne_bytes();
    let get = [&LANDING[..], &[MOVE_TO_EAX], &number, &CALL].concat();
    let code = [&get[..], &[XOR_EAX], &own.to_ne_bytes(), &[RETURN]].concat();
    memfile::write_at(memory, &code, stub)?;
    Ok(stub)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_openssl_are_known_by_their_names() {
        for name in [
            "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
            "/usr/lib/libcrypto.so.1.1 (deleted)",
            "/opt/packages/psycopg2.libs/libcrypto-3ae15f53.so.3",
            "/usr/lib64/ossl-modules/fips.so",
        ] {
            assert!(is_of_openssl(name), "{name}");
        }
        for name in ["/usr/lib/libcryptsetup.so.12", "/usr/lib/libssl.so.3", "/libcrypto/own.so"] {
            assert!(!is_of_openssl(name), "{name}");
        }
    }

    #[test]
    fn a_free_page_is_below_the_code_and_near() {
        let line = |range| format!("{range} r-xp 00000000 08:01 7 /usr/bin/node\n");
        let program = [line("400000-800000"), line("900000-a00000")].concat();
        assert_eq!(free_page_near(&program, 0x900010, &[]), Some(0x8ff000));
        assert_eq!(free_page_near(&program, 0x900010, &[(0, 0x8ff000)]), Some(0x3ff000));
        assert_eq!(free_page_near(&program, 0x400010, &[]), Some(0x3ff000), "none above");
        let far = [line("1000000-2000000"), line("2000000-90000000")].concat();
        assert_eq!(free_page_near(&far, 0x8fff_f000, &[]), None);
        assert_eq!(free_page_near(&line("10000-20000"), 0x10010, &[]), None);
    }
}
