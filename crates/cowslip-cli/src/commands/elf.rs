//! What kind of program a file is, from its first bytes (`elf(5)`).

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Names a program interpreter (`PT_INTERP`): a preload library is loaded with it.
    Dynamic,
    /// As dynamic, for the C library musl.
    Musl,
    /// Dynamic or not, from the Go compiler.
    Go,
    Static,
    /// 32 bits, or another machine.
    Foreign,
    Script,
    Other,
}

const MACHINE_AT: usize = 18;
const PROGRAM_HEADERS_AT: usize = 32;
const HEADER_SIZE_AT: usize = 54;
const HEADER_COUNT_AT: usize = 56;
const INTERPRETER: u32 = 3;
const NOTE: u32 = 4;
/// The name of the Go compiler's notes, padded, with the type of the one that holds the build id.
const GO_NOTE: &[u8] = b"\x04\0\0\0Go\0\0";
/// Of a note or an interpreter's name that is looked at.
const LONGEST: u64 = 4096;
/// Linkers put the headers and the interpreter's name at the front.
const INTERPRETER_WITHIN: u64 = 64 << 10;

pub(crate) fn kind(path: &Path) -> Kind {
    read_kind(path).unwrap_or(Kind::Other)
}

fn read_kind(path: &Path) -> std::io::Result<Kind> {
    let mut file = File::open(path)?;
    let mut head = [0u8; 64];
    let read = file.read(&mut head)?;
    if head.starts_with(b"#!") {
        return Ok(Kind::Script);
    }
    if read < head.len() || !head.starts_with(b"\x7fELF") {
        return Ok(Kind::Other);
    }
    let mut own = [0u8; 20];
    File::open("/proc/self/exe")?.read_exact(&mut own)?;
    if head[4..6] != own[4..6] || head[MACHINE_AT..][..2] != own[MACHINE_AT..] {
        return Ok(Kind::Foreign);
    }
    let half = |at: usize| u64::from(u16::from_ne_bytes([head[at], head[at + 1]]));
    let offset = u64::from_ne_bytes(head[PROGRAM_HEADERS_AT..][..8].try_into().expect("8 bytes"));
    let mut found = Kind::Static;
    for i in 0..half(HEADER_COUNT_AT) {
        file.seek(SeekFrom::Start(offset.saturating_add(i * half(HEADER_SIZE_AT))))?;
        let mut header = [0u8; 40];
        file.read_exact(&mut header)?;
        let word = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let kind = u32::from_ne_bytes(header[..4].try_into().expect("4 bytes"));
        if kind != INTERPRETER && kind != NOTE {
            continue;
        }
        file.seek(SeekFrom::Start(word(8)))?;
        let mut content = Vec::new();
        (&file).take(word(32).min(LONGEST)).read_to_end(&mut content)?;
        let has = |text: &[u8]| content.windows(text.len()).any(|part| part == text);
        match kind {
            NOTE if has(GO_NOTE) => return Ok(Kind::Go),
            INTERPRETER if has(b"/ld-musl") => found = Kind::Musl,
            INTERPRETER => found = Kind::Dynamic,
            _ => {}
        }
    }
    Ok(found)
}

/// The dynamic loader that a dynamic program names (`PT_INTERP`), or the interpreter that a script names
/// in its first line, with that line's other words.
pub(crate) fn interpreter(path: &Path) -> Option<(Kind, Vec<String>)> {
    let kind = kind(path);
    let head = || -> std::io::Result<Vec<u8>> {
        let mut head = Vec::new();
        File::open(path)?.take(INTERPRETER_WITHIN).read_to_end(&mut head)?;
        Ok(head)
    };
    let head = head().ok()?;
    let words = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        Some(text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let named = match kind {
        Kind::Script => words(head[2..].split(|&byte| byte == b'\n').next()?),
        Kind::Dynamic => {
            let word = |at: usize| Some(u64::from_ne_bytes(head.get(at..at + 8)?.try_into().ok()?));
            let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]) as usize;
            let headers = word(PROGRAM_HEADERS_AT)? as usize;
            let at = (0..half(HEADER_COUNT_AT))
                .map(|i| headers + i * half(HEADER_SIZE_AT))
                .find(|&at| head.get(at..at + 4) == Some(&INTERPRETER.to_ne_bytes()[..]))?;
            let (start, len) = (word(at + 8)? as usize, word(at + 32)? as usize);
            words(head.get(start..start.checked_add(len)?.checked_sub(1)?)?)
        }
        _ => None,
    };
    named.filter(|words| !words.is_empty()).map(|words| (kind, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_programs_from_other_files() {
        assert_eq!(kind(Path::new("/proc/self/exe")), Kind::Dynamic);
        assert_eq!(kind(Path::new("/etc/passwd")), Kind::Other);
        assert_eq!(kind(Path::new("/nowhere")), Kind::Other);
        let script = std::env::temp_dir().join(format!("cowslip-script-{}", std::process::id()));
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        assert_eq!(kind(&script), Kind::Script);
        assert_eq!(interpreter(&script), Some((Kind::Script, vec!["/bin/sh".to_owned()])));
        let (_, loader) = interpreter(Path::new("/proc/self/exe")).unwrap();
        assert!(loader[0].contains("ld-"), "{loader:?}");
        std::fs::remove_file(script).unwrap();
    }
}
