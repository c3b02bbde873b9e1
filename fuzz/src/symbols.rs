//! Names of places in the program, which libFuzzer asks a sanitizer's library for. There is none here.

use std::ffi::{CStr, c_char, c_int, c_void};

/// Writes what `format` asks for: `%s` a file, `%l` a line, `%F` a function, `%L` a file and a line, `%p` an address.
///
/// # Safety
/// libFuzzer's: `format` is a C string, and there is room for `out_bytes` at `out`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sanitizer_symbolize_pc(
    pc: *mut c_void,
    format: *const c_char,
    out: *mut c_char,
    out_bytes: usize,
) {
    let (mut file, mut line, mut function) = (String::new(), 0, String::new());
    backtrace::resolve(pc, |symbol| {
        if let Some(path) = symbol.filename().filter(|_| file.is_empty()) {
            file = path.display().to_string();
            line = symbol.lineno().unwrap_or_default();
            function = symbol.name().map(|name| format!("{name:#}")).unwrap_or_default();
        }
    });
    // SAFETY: the caller's.
    let format = unsafe { CStr::from_ptr(format) }.to_string_lossy();
    let text = format.replace("%L", "%s:%l").replace("%s", &file).replace("%l", &line.to_string());
    let text = text.replace("%F", &function.replace(' ', "")).replace("%p", &format!("{pc:p}"));
    let length = text.len().min(out_bytes.saturating_sub(1));
    // SAFETY: there is room for the text and its end.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, length);
        *out.add(length) = 0;
    }
}

/// libFuzzer reports coverage only where this is there, and does without its answer.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_get_module_and_offset_for_pc(
    _pc: *mut c_void,
    _module: *mut c_char,
    _module_bytes: usize,
    _offset: *mut *mut c_void,
) -> c_int {
    0
}
