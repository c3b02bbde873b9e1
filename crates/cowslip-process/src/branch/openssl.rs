//! OpenSSL's random numbers in copies, and in processes that are restored from a checkpoint.
//!
//! OpenSSL draws fresh random bytes of the kernel in a process that it has not drawn in before, which it knows by `getpid(2)`
//! (`openssl_get_fork_id`). A copy has the program's number, in a namespace of its own, and would go on with the numbers of all
//! others, as would each restore of a checkpoint. In these, OpenSSL is therefore told another number:
//!
//! ```text
//!  libcrypto.so     call getpid ─▶ its slot ───────────────────────┐
//!  a program that   openssl_get_fork_id: jmp getpid ───────────────┤ is changed in the copy's memory alone
//!  has it inside                                                   ▼
//!                                    stub: getpid() ^ a random number, drawn at the first call
//! ```
//! The number is in memory beside the stub, and 0 in a holder: each process that is made of it draws its own. The process'
//! children have other numbers, as they should.
//!
//! libcrypto calls `getpid` there, and for the bytes that make a nonce unique (`ossl_pool_add_nonce_data`), nowhere else.
//! Programs and libraries with an OpenSSL inside, as Node and Python's `cryptography`, may call it for other purposes; their
//! function is found by its symbol. Without one, and where it is more than a jump, they are left as they are.

use cowslip_sys::error::During;
use cowslip_sys::procfs::mappings;
use cowslip_sys::target::Target;
use cowslip_sys::units::page_size_bytes;
use cowslip_sys::{AsFd, BorrowedFd, Errno, Result, memfile};
use libc::{
    MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, PROT_EXEC, PROT_READ, PROT_WRITE, SYS_mmap,
    SYS_mprotect,
};

use super::caller::Caller;
use crate::hold::Holder;
use crate::loaded::Loaded;

/// `endbr64`, the first instruction of functions in some builds.
const LANDING: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `jmp` to an address at most 2 GiB away, and the bytes of the instruction.
const JUMP: u8 = 0xe9;
const JUMP_BYTES: u64 = 5;
/// The stub is one page, and its number is in the next.
const STUB_PAGES: u64 = 2;
/// Calls no other function, and keeps what such a function keeps. The number has a bit that no process' number has, as these
/// are below 2^22. The first of two threads to draw decides. Without random bytes of the kernel that bit alone is the number.
const STUB: [u8; 74] = [
    0xf3, 0x0f, 0x1e, 0xfa, //                        endbr64
    0x8b, 0x05, 0xf6, 0x0f, 0x00, 0x00, //            mov eax, [number]
    0x85, 0xc0, //                                    test eax, eax
    0x75, 0x30, //                                    jne known
    0x6a, 0x00, //                                    push 0
    0x48, 0x89, 0xe7, //                              mov rdi, rsp
    0xbe, 0x04, 0x00, 0x00, 0x00, //                  mov esi, 4
    0xba, 0x01, 0x00, 0x00, 0x00, //                  mov edx, GRND_NONBLOCK
    0xb8, 0x3e, 0x01, 0x00, 0x00, //                  mov eax, SYS_getrandom
    0x0f, 0x05, //                                    syscall
    0x59, //                                          pop rcx
    0x81, 0xe1, 0xff, 0xff, 0xff, 0x3f, //            and ecx, 0x3fffffff
    0x81, 0xc9, 0x00, 0x00, 0x00, 0x40, //            or ecx, 0x40000000
    0x31, 0xc0, //                                    xor eax, eax
    0xf0, 0x0f, 0xb1, 0x0d, 0xc5, 0x0f, 0x00, 0x00, // lock cmpxchg [number], ecx
    0x0f, 0x44, 0xc1, //                              cmove eax, ecx
    0x89, 0xc2, //                             known: mov edx, eax
    0xb8, 0x27, 0x00, 0x00, 0x00, //                  mov eax, SYS_getpid
    0x0f, 0x05, //                                    syscall
    0x31, 0xd0, //                                    xor eax, edx
    0xc3, //                                          ret
];

/// The places at which OpenSSL asks for the number of its process.
#[derive(Clone, Debug, Default)]
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
                && let Some(free) = free_pages_near(maps, jump, &places.jumps)
            {
                places.jumps.push((jump, free));
            }
        }
        places
    }

    /// Has a process, which does not run, answer there with a number of its own.
    pub(crate) fn redirect(&self, task: &mut Caller<'_>, memory: BorrowedFd<'_>) -> Result<()> {
        if !self.slots.is_empty() {
            let stub = add_stub(task, memory, None)?;
            for slot in &self.slots {
                memfile::write_at(memory, &stub.to_ne_bytes(), *slot)?;
            }
        }
        for (jump, free) in &self.jumps {
            let stub = add_stub(task, memory, Some(*free))?;
            let distance = stub.wrapping_sub(jump + JUMP_BYTES) as i32;
            memfile::write_at(memory, &distance.to_ne_bytes(), jump + 1)?;
        }
        Ok(())
    }
}

impl Holder {
    /// Has OpenSSL draw other random numbers in each process that is made of the holder.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](cowslip_sys::error::ErrorKind::Busy) once the holder is lent; what a call on its behalf answered.
    pub fn renew_random_numbers(&mut self) -> cowslip_sys::error::Result<()> {
        const OPERATION: &str = "give a copy random numbers of its own";
        let places = self.openssl().during(OPERATION)?.clone();
        self.calls(OPERATION, |caller, held| {
            let memory = held.open_memory()?;
            places.redirect(caller, memory.as_fd())
        })
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

/// The highest free pages for a stub below the file that has the code, where no heap grows to.
fn free_pages_near(maps: &str, code: u64, taken: &[(u64, u64)]) -> Option<u64> {
    /// Not all of the 2 GiB: the end of the stub counts, too.
    const FARTHEST_BYTES: u64 = (1 << 31) - (1 << 20);
    /// `vm.mmap_min_addr`, at most.
    const LOWEST: u64 = 1 << 16;
    let len = STUB_PAGES * page_size_bytes() as u64;
    let ends: Vec<_> = mappings(maps).map(|mapping| mapping.range.end() as u64).collect();
    let starts = mappings(maps).map(|mapping| mapping.range.start as u64);
    let gaps = std::iter::once(LOWEST).chain(ends).zip(starts);
    let fits = |at: &u64| {
        code.abs_diff(*at) <= FARTHEST_BYTES && taken.iter().all(|(_, other)| other != at)
    };
    let below = gaps.filter(|(end, start)| *start <= code && end + len <= *start);
    below.map(|(_, start)| start - len).filter(fits).last()
}

/// Adds the stub to a process, and returns its address.
fn add_stub(task: &mut Caller<'_>, memory: BorrowedFd<'_>, at: Option<u64>) -> Result<u64> {
    let fixed = if at.is_some() { MAP_FIXED_NOREPLACE } else { 0 };
    let flags = (MAP_PRIVATE | MAP_ANONYMOUS | fixed) as u64;
    let (at, page) = (at.unwrap_or(0), page_size_bytes() as u64);
    // Code is never writable, which some programs forbid.
    let protection = (PROT_READ | PROT_EXEC) as u64;
    let stub = task.call(SYS_mmap, &[at, STUB_PAGES * page, protection, flags, !0, 0])?;
    if fixed != 0 && stub != at {
        // Before Linux 4.17 the flag is not known.
        return Err(Errno::EXIST);
    }
    task.call(SYS_mprotect, &[stub + page, page, (PROT_READ | PROT_WRITE) as u64])?;
    memfile::write_at(memory, &STUB, stub)?;
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
    fn free_pages_are_below_the_code_and_near() {
        let line = |range| format!("{range} r-xp 00000000 08:01 7 /usr/bin/node\n");
        let program = [line("400000-800000"), line("900000-a00000")].concat();
        assert_eq!(free_pages_near(&program, 0x900010, &[]), Some(0x8fe000));
        assert_eq!(free_pages_near(&program, 0x900010, &[(0, 0x8fe000)]), Some(0x3fe000));
        assert_eq!(free_pages_near(&program, 0x400010, &[]), Some(0x3fe000), "none above");
        let far = [line("1000000-2000000"), line("2000000-90000000")].concat();
        assert_eq!(free_pages_near(&far, 0x8fff_f000, &[]), None);
        assert_eq!(free_pages_near(&line("10000-20000"), 0x10010, &[]), None);
    }
}
