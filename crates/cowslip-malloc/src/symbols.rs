//! Tables of the functions that objects define.
//!
//! # Safety
//! `dl_iterate_phdr(3)` passes objects that stay loaded until its function returns. Their dynamic sections, symbols and
//! strings are laid out as in `elf(5)`; the hash table is that of GNU's `ld --hash-style=gnu`.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::slice;

use libc::{Elf64_Phdr, Elf64_Sym};

const SHN_UNDEF: u16 = 0;

/// Returns true if the object with this address names the function there without defining it.
pub(crate) fn is_undefined(address: *const c_void) -> bool {
    const RTLD_DL_SYMENT: c_int = 1;
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    let mut symbol: *mut c_void = ptr::null_mut();
    // SAFETY: dladdr1(3) fills in both unless it returns 0.
    let is_found =
        unsafe { libc::dladdr1(address, found.as_mut_ptr(), &raw mut symbol, RTLD_DL_SYMENT) } != 0;
    // SAFETY: a symbol of an object that stays loaded, as it is the program.
    is_found && !symbol.is_null() && unsafe { (*symbol.cast::<Elf64_Sym>()).st_shndx == SHN_UNDEF }
}

/// Returns true if an object that was loaded before this library defines the function.
pub(crate) fn is_defined_before_here(name: &CStr) -> bool {
    let mut search = Search { name, is_defined: false };
    // SAFETY: `look` gets the type that it expects.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.is_defined
}

struct Search<'a> {
    name: &'a CStr,
    is_defined: bool,
}

/// Ends the iteration at this library, and at a definition.
unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: see the module; `search` is that of `is_defined_before_here`.
    unsafe {
        let (object, search) = (&*object, &mut *search.cast::<Search<'_>>());
        let headers = slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        let here = (look as *const c_void as u64).wrapping_sub(object.dlpi_addr);
        let has_here = |header: &Elf64_Phdr| {
            header.p_type == libc::PT_LOAD && here.wrapping_sub(header.p_vaddr) < header.p_memsz
        };
        if headers.iter().any(has_here) {
            return 1;
        }
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
        let tables = dynamic.and_then(|dynamic| Tables::new(object.dlpi_addr, dynamic.p_vaddr));
        search.is_defined = tables.is_some_and(|tables| tables.define(search.name));
        search.is_defined.into()
    }
}

/// The tables of an object.
struct Tables {
    symbols: *const Elf64_Sym,
    strings: *const c_char,
    hashes: *const u32,
}

impl Tables {
    /// `None` without a hash table of GNU's kind.
    unsafe fn new(base: u64, dynamic: u64) -> Option<Self> {
        const DT_STRTAB: u64 = 5;
        const DT_SYMTAB: u64 = 6;
        const DT_GNU_HASH: u64 = 0x6fff_fef5;
        let [mut symbols, mut strings, mut hashes] = [0; 3];
        let mut entry = base.wrapping_add(dynamic) as *const [u64; 2];
        loop {
            // SAFETY: see the module; the section ends with an entry of zeroes.
            let [tag, value] = unsafe { *entry };
            // glibc has added the base, unless the section is read-only.
            let address = if value < base { base + value } else { value };
            match tag {
                0 => break,
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => hashes = address,
                _ => {}
            }
            // SAFETY: not the last entry.
            entry = unsafe { entry.add(1) };
        }
        let [symbols, strings, hashes] = [symbols, strings, hashes].map(|address| address as usize);
        (hashes != 0).then_some(Self {
            symbols: symbols as *const _,
            strings: strings as *const _,
            hashes: hashes as *const _,
        })
    }

    /// Returns true if one of the symbols defines `name`. Of others the hash table has those of a program that takes their
    /// address.
    unsafe fn define(&self, name: &CStr) -> bool {
        let hash = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(*byte));
        let wanted = name.to_bytes().iter().fold(5381, hash);
        // SAFETY: see the module. The header has four words, the filter words of 64 bits.
        unsafe {
            let [buckets, first, filter] = *self.hashes.cast::<[u32; 3]>();
            if buckets == 0 {
                return false;
            }
            let bucket = self.hashes.add(4 + 2 * filter as usize);
            let chain = bucket.add(buckets as usize);
            let mut symbol = *bucket.add((wanted % buckets) as usize);
            while symbol >= first.max(1) {
                let hash = *chain.add((symbol - first) as usize);
                let found = &*self.symbols.add(symbol as usize);
                let text = self.strings.add(found.st_name as usize);
                if hash | 1 == wanted | 1 && CStr::from_ptr(text) == name {
                    return found.st_shndx != SHN_UNDEF;
                }
                // The lowest bit marks the last one of a bucket.
                symbol = if hash & 1 == 0 { symbol + 1 } else { 0 };
            }
            false
        }
    }
}
