//! What kind of program a file is, from its first bytes (`elf(5)`).

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Names a program interpreter (`PT_INTERP`): a preload library is loaded with it.
    Dynamic,
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
    for i in 0..half(HEADER_COUNT_AT) {
        file.seek(SeekFrom::Start(offset.saturating_add(i * half(HEADER_SIZE_AT))))?;
        let mut kind = [0u8; 4];
        file.read_exact(&mut kind)?;
        if u32::from_ne_bytes(kind) == INTERPRETER {
            return Ok(Kind::Dynamic);
        }
    }
    Ok(Kind::Static)
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
        std::fs::remove_file(script).unwrap();
    }
}
