//! Accesses that the kernel answers with a signal, and the signal's code.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use libc::{EEXIST, MAP_FIXED_NOREPLACE, PROT_READ};

use super::threads::ALIVE;
use super::{Me, SKIP};
use crate::model::Prot;
use crate::program::Call;
use crate::sys;
use crate::words::PAGE;

const MAPERR: c_int = 1;
const ACCERR: c_int = 2;

// A load or a store, and the place where the handler lets it continue, with the signal's code as the result.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    "adversary_touch:",
    "test esi, esi",
    "jnz adversary_store",
    "adversary_load:",
    "mov al, byte ptr [rdi]",
    "xor eax, eax",
    "ret",
    "adversary_store:",
    "mov byte ptr [rdi], 0x55",
    "xor eax, eax",
    "adversary_touched:",
    "ret",
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    "adversary_touch:",
    "cbnz w1, adversary_store",
    "adversary_load:",
    "ldrb w0, [x0]",
    "mov w0, #0",
    "ret",
    "adversary_store:",
    "strb w1, [x0]",
    "mov w0, #0",
    "adversary_touched:",
    "ret",
);

unsafe extern "C" {
    fn adversary_touch(at: usize, writes: c_int) -> c_int;
    fn adversary_load();
    fn adversary_store();
    fn adversary_touched();
}

/// True if a signal is due to a [touch](Me::trap), which then continues.
///
/// # Safety
/// Must be called by a handler with its own arguments.
pub(super) unsafe fn is_trap(
    signal: c_int,
    info: *const libc::siginfo_t,
    context: *mut c_void,
) -> bool {
    let places = [adversary_load as *const () as usize, adversary_store as *const () as usize];
    let next = adversary_touched as *const () as usize;
    // SAFETY: the caller keeps the contract.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        #[cfg(target_arch = "x86_64")]
        let (counter, answer, at) = {
            let at = registers.gregs[libc::REG_RDI as usize];
            let [counter, answer] = registers
                .gregs
                .get_disjoint_mut([libc::REG_RIP as usize, libc::REG_RAX as usize])
                .expect("two registers");
            (counter, answer, at)
        };
        #[cfg(target_arch = "aarch64")]
        let (counter, answer, at) = {
            let at = registers.regs[0];
            (&mut registers.pc, &mut registers.regs[0], at)
        };
        if !places.contains(&(*counter as usize)) {
            return false;
        }
        let is_there = (*info).si_addr() as usize == at as usize;
        let said = match signal {
            libc::SIGSEGV if is_there => (*info).si_code,
            _ => 100 + signal,
        };
        *counter = next as _;
        *answer = said as _;
    }
    true
}

/// Returns 0 if nothing happened, or the signal's code.
fn touch(at: usize, how: &str) -> c_int {
    // SAFETY: by the model, it is the program's own memory, or none.
    unsafe { adversary_touch(at, c_int::from(how == "write")) }
}

impl Me {
    /// Touches a page that does not permit it.
    pub(super) fn trap(&mut self, call: &Call) -> Option<()> {
        let (index, region) = self.mapping(call.number(0))?;
        let page = call.number(1) % region.pages.len();
        let (at, state) = (region.at(page), region.pages[page]);
        let (how, what) = (call.word(2), call.word(3));
        if !state.here {
            return SKIP;
        }
        let is_alone = || ALIVE.load(Ordering::Relaxed) == 1;
        let expect = |said: c_int, right: c_int| {
            if said != right {
                self.fail(&format!("a {how} at {at:#x} said {said} instead of {right}"));
            }
        };
        match what {
            "as-it-is" => match state.prot {
                Prot::None => expect(touch(at, how), ACCERR),
                Prot::Read if how == "write" => expect(touch(at, how), ACCERR),
                _ => return SKIP,
            },
            _ => {
                let is_beside = region.pages.get(page + 1).is_some_and(|next| next.here);
                self.expect("munmap", sys::munmap(at, PAGE), Ok(0));
                if what == "refused" && is_beside {
                    let mapped = sys::mmap(at, 2 * PAGE, PROT_READ, MAP_FIXED_NOREPLACE);
                    self.expect("mmap beside memory", mapped, Err(EEXIST));
                }
                if what != "unmapped" && is_alone() {
                    let child = self.helper(|| touch(at, how) == MAPERR);
                    self.waited(child);
                }
                // Another thread may have mapped memory there.
                if is_alone() {
                    expect(touch(at, how), MAPERR);
                }
                self.regions[index].is_whole = false;
                self.pages(index, page..page + 1)[0].here = false;
                self.regions.retain(|region| region.pages.iter().any(|page| page.here));
            }
        }
        Some(())
    }
}
