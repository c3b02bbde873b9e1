//! `execve` and its like: a program that the first process execs is the same program to the user, and is helped as
//! well.
//!
//! Launchers, `env` in a script's first line, version managers and `sh -c 'exec …'` therefore keep the help. Programs
//! that children exec run as without Cowslip; with `--follow-exec` they are helped unless they cannot be.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cowslip_sys::executable::{self, Kind};
use cowslip_sys::process::{self, BlockedSignals};

use crate::rt::config::config;
use crate::rt::environment::{self, Environment};
use crate::rt::log::say;
use crate::rt::next_symbol::{NextSymbol, next_symbol};

/// The process that the program was started as.
static FIRST: AtomicI32 = AtomicI32::new(0);

/// Called by the constructor of this library.
pub(crate) fn begin() {
    FIRST.store(process::pid(), Relaxed);
}

/// The environment for `program`, if it must differ from the one that the program passes on.
///
/// # Safety
/// As for `execve(2)`.
unsafe fn environment(
    program: impl FnOnce() -> Option<PathBuf>,
    given: *const *const c_char,
) -> Option<Environment> {
    let is_first = FIRST.load(Relaxed) == process::pid();
    if config().off || !(is_first || config().follows_exec) {
        return None;
    }
    let _blocked = BlockedSignals::enter();
    let program = program()?;
    let can_help = executable::kind_that_runs(&program) == Kind::Dynamic;
    // SAFETY: as the caller promised.
    if can_help == config().follows_exec && !(can_help && unsafe { environment::is_audited(given) })
    {
        // The given environment is right already.
        return None;
    }
    say!(
        "{} is executed, and {}",
        program.display(),
        if can_help { "helped" } else { "not helped" }
    );
    // SAFETY: as the caller promised.
    unsafe { Environment::from_pointer(given, can_help) }
}

/// # Safety
/// A string that ends with a zero byte, or null.
unsafe fn path_of<'a>(text: *const c_char) -> Option<&'a OsStr> {
    // SAFETY: as the caller promised.
    (!text.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()))
}

type Strings = *const *const c_char;

/// Calls `execve`, or `execvpe` if the name is searched for, with the environment that the program should get.
unsafe fn execute(next: &NextSymbol, name: *const c_char, words: Strings, given: Strings) -> c_int {
    let is_looked_for = core::ptr::eq(next, &EXECVPE);
    let program = || {
        // SAFETY: the program's own argument.
        let name = unsafe { path_of(name) }?;
        if !is_looked_for {
            return Some(Path::new(name).to_owned());
        }
        executable::find(name, std::env::var_os("PATH").as_deref()).ok()
    };
    // SAFETY: libc's function of that name has this type; the call is the program's own.
    unsafe {
        let changed = environment(program, given);
        let given = changed.as_ref().map_or(given, Environment::as_ptr);
        let original = core::mem::transmute::<
            *mut core::ffi::c_void,
            unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int,
        >(next.get());
        original(name, words, given)
    }
}

next_symbol! { EXECVE = c"execve" }
next_symbol! { EXECVPE = c"execvpe" }

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, words: Strings, given: Strings) -> c_int {
    // SAFETY: the program's own call.
    unsafe { execute(&EXECVE, path, words, given) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, words: Strings) -> c_int {
    // SAFETY: execv(3) is execve(2) with the current environment.
    unsafe { execute(&EXECVE, path, words, environment::current()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(name: *const c_char, words: Strings) -> c_int {
    // SAFETY: execvp(3) is execvpe(3) with the current environment.
    unsafe { execute(&EXECVPE, name, words, environment::current()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(name: *const c_char, words: Strings, given: Strings) -> c_int {
    // SAFETY: the program's own call.
    unsafe { execute(&EXECVPE, name, words, given) }
}

/// `execle`: the environment follows the null pointer that ends the words.
unsafe extern "C" fn execve_after(path: *const c_char, words: Strings) -> c_int {
    // SAFETY: the program's own arguments, in the order in which it gave them.
    unsafe {
        let mut end = words;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, words, end.add(1).cast::<Strings>().read())
    }
}

/// Functions that take their words one by one: the first ones are in registers, the others on the stack.
macro_rules! one_by_one {
    ($($name:ident = $function:path;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {function}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                function = sym $function,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "sub sp, sp, #80",
                "stp x29, x30, [sp]",
                "stp x1, x2, [sp, #24]",
                "stp x3, x4, [sp, #40]",
                "stp x5, x6, [sp, #56]",
                "str x7, [sp, #72]",
                "add x1, sp, #24",
                "bl {function}",
                "ldp x29, x30, [sp]",
                "add sp, sp, #80",
                "ret",
                function = sym $function,
            )
        }
    )*};
}

one_by_one! {
    execl = execv;
    execlp = execvp;
    execle = execve_after;
}
