//! The program that `execve(2)` would run: which file a name means, and the kind of that program (`elf(5)`).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{NativeEndian, ReadCache, ReadRef};

use crate::{Errno, Result};

/// The kind of program that a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Names a program interpreter (`PT_INTERP`): a preload library is loaded with it.
    Dynamic,
    /// Dynamic, for the C library musl.
    Musl,
    /// Dynamic or not, from the Go compiler.
    Go,
    /// Dynamic, with the run-time library of a sanitizer (ASan, LSan, MSan or TSan), which must be loaded first.
    Sanitized,
    /// Without an interpreter.
    Static,
    /// 32 bits, or another machine.
    Foreign,
    /// Dynamic, but set to another user or group: nothing is preloaded into it.
    Privileged,
    /// Begins with `#!`.
    Script,
    /// None of these.
    Other,
}

#[cfg(target_arch = "x86_64")]
const MACHINE: elf::Machine = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: elf::Machine = elf::EM_AARCH64;

/// Prefixes of the dynamic symbols and libraries of programs built with a sanitizer.
const SANITIZERS: [&[u8]; 7] = [
    b"__asan_init",
    b"__tsan_init",
    b"__msan_init",
    b"__lsan_",
    b"libasan.so",
    b"libtsan.so",
    b"liblsan.so",
];

/// The deepest nesting of script interpreters, the same as the kernel's.
const DEEPEST: usize = 5;
/// The bytes of a script's first line that the kernel reads.
const FIRST_LINE_BYTES: u64 = 256;

/// The kind of program; [`Kind::Other`] if it cannot be read.
pub fn kind(path: &Path) -> Kind {
    look(path).map_or(Kind::Other, |found| found.unwrap_or(Kind::Other))
}

/// The kind of the file that the kernel executes for `path`: itself, or the interpreter of a script. [`Kind::Script`]
/// if scripts nest too deep.
pub fn kind_that_runs(path: &Path) -> Kind {
    let mut program = path.to_owned();
    for _ in 0..DEEPEST {
        let kind = kind(&program);
        if kind != Kind::Script {
            return kind;
        }
        let Some(interpreter) = interpreter(&program) else { break };
        program = interpreter;
    }
    Kind::Script
}

/// The interpreter that a script names.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    File::open(script).ok()?.take(FIRST_LINE_BYTES).read_to_end(&mut line).ok()?;
    let line = line[2..].split(|&byte| byte == b'\n').next()?;
    let word = line.split(|byte| b" \t".contains(byte)).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(word.to_vec())))
}

/// The file that `name` means: itself if it has a slash, else the first of that name in `path` (like `PATH`,
/// `environ(7)`).
///
/// # Errors
/// `ENOENT` if there is none, `EACCES` if none of them may be executed (`execvp(3)`).
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf> {
    let check = |path: &Path| match path.metadata() {
        Ok(metadata) if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 => {
            rustix::fs::access(path, rustix::fs::Access::EXEC_OK)
        }
        Ok(_) => Err(Errno::ACCESS),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::NOENT)),
    };
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return check(&path).map(|()| path);
    }
    let path = path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let mut refusal = Errno::NOENT;
    for candidate in std::env::split_paths(path).map(|folder| folder.join(name)) {
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => refusal = errno,
        }
    }
    Err(refusal)
}

fn look(path: &Path) -> std::io::Result<Option<Kind>> {
    // A FIFO would wait for a writer.
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut head = [0; 2];
    if file.read(&mut head)? == 2 && head == *b"#!" {
        return Ok(Some(Kind::Script));
    }
    let is_set = file.metadata()?.permissions().mode() & 0o6000 != 0;
    let kind = of_elf(&ReadCache::new(file));
    Ok(kind.map(|kind| match kind {
        Kind::Dynamic | Kind::Sanitized | Kind::Musl if is_set => Kind::Privileged,
        kind => kind,
    }))
}

fn of_elf<'a>(file: impl ReadRef<'a>) -> Option<Kind> {
    let ident = file.read_bytes_at(0, 5).ok()?;
    if !ident.starts_with(b"\x7fELF") {
        return None;
    }
    let Ok(header) = FileHeader64::<NativeEndian>::parse(file) else { return Some(Kind::Foreign) };
    if header.e_machine(NativeEndian) != MACHINE {
        return Some(Kind::Foreign);
    }
    let segments = header.program_headers(NativeEndian, file).ok()?;
    let mut kind = Kind::Static;
    for segment in segments {
        if let Ok(Some(mut notes)) = segment.notes(NativeEndian, file)
            && notes.any(|note| note.is_ok_and(|note| note.name() == b"Go"))
        {
            return Some(Kind::Go);
        }
        match segment.interpreter(NativeEndian, file) {
            Ok(Some(name)) if name.starts_with(b"/lib/ld-musl") => kind = Kind::Musl,
            Ok(Some(_)) => kind = Kind::Dynamic,
            _ => {}
        }
    }
    let names = dynamic_names(segments, file).unwrap_or_default();
    let is_sanitizers = |name: &[u8]| SANITIZERS.iter().any(|begin| name.starts_with(begin));
    let is_sanitized = kind == Kind::Dynamic && names.split(|&byte| byte == 0).any(is_sanitizers);
    Some(if is_sanitized { Kind::Sanitized } else { kind })
}

/// The names of dynamic symbols and of libraries, one after the other.
fn dynamic_names<'a>(
    segments: &'a [elf::ProgramHeader64<NativeEndian>],
    file: impl ReadRef<'a>,
) -> Option<&'a [u8]> {
    let dynamic =
        segments.iter().find_map(|segment| segment.dynamic(NativeEndian, file).ok().flatten())?;
    let value = |tag: elf::DynamicTag| {
        let entry = dynamic.iter().find(|entry| entry.d_tag(NativeEndian) == tag)?;
        Some(entry.d_val(NativeEndian))
    };
    let (start, len) = (value(elf::DT_STRTAB)?, value(elf::DT_STRSZ)?);
    let loaded = segments.iter().filter(|segment| segment.p_type(NativeEndian) == elf::PT_LOAD);
    loaded
        .filter_map(|segment| segment.data_range(NativeEndian, file, start, len).ok().flatten())
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_programs_from_other_files() {
        let own = if cfg!(target_feature = "crt-static") { Kind::Static } else { Kind::Dynamic };
        assert_eq!(kind(Path::new("/proc/self/exe")), own);
        assert_eq!(kind(Path::new("/etc/passwd")), Kind::Other);
        assert_eq!(kind(Path::new("/nowhere")), Kind::Other);
        let script = std::env::temp_dir().join(format!("cowslip-script-{}", std::process::id()));
        std::fs::write(&script, "#! /bin/sh -e\n").unwrap();
        assert_eq!(kind(&script), Kind::Script);
        assert_eq!(interpreter(&script).as_deref(), Some(Path::new("/bin/sh")));
        // Busybox is often static.
        let shell = kind(Path::new("/bin/sh"));
        assert!(matches!(shell, Kind::Dynamic | Kind::Static), "{shell:?}");
        assert_eq!(kind_that_runs(&script), shell);
        std::fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert_eq!(kind_that_runs(&script), Kind::Script, "its own interpreter");
        std::fs::remove_file(script).unwrap();
    }

    #[test]
    fn finds_what_execvp_finds() {
        let path = Some(OsStr::new("/nowhere:/etc:/usr/bin:/bin"));
        let found = find(OsStr::new("sh"), path).unwrap();
        assert!(found.ends_with("sh") && kind(&found) == kind(Path::new("/bin/sh")), "{found:?}");
        assert_eq!(find(OsStr::new("/etc/passwd"), path), Err(Errno::ACCESS));
        assert_eq!(find(OsStr::new("passwd"), Some(OsStr::new("/etc"))), Err(Errno::ACCESS));
        assert_eq!(find(OsStr::new("/nowhere"), path), Err(Errno::NOENT));
        assert_eq!(find(OsStr::new("no-such-program"), path), Err(Errno::NOENT));
    }
}
