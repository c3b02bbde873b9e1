//! The command line of a machine, and of its copies.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::disks::{self, Disk};
use crate::exit::{Failure, USAGE};

/// All that a copy of a machine needs to know, but for its memory and its devices' state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Machine {
    /// The program, and its arguments.
    pub(super) arguments: Vec<String>,
    /// The folder in which it was started.
    pub(super) folder: String,
    /// The name of its memory backend.
    pub(super) backend: String,
    /// The size of its RAM.
    pub(super) ram_bytes: u64,
    /// The disks that copies have overlays of. An image has none.
    #[serde(skip)]
    pub(super) disks: Vec<Disk>,
}

/// Options with a value that a copy does not have: it has its own, or none.
const DROPPED: [&str; 6] = ["-qmp", "-qmp-pretty", "-monitor", "-pidfile", "-incoming", "-D"];
/// Options without a value that it does not have.
const DROPPED_FLAGS: [&str; 2] = ["-daemonize", "-S"];
/// A backend of a character device that only one process can have, or that all would write to.
const OF_ONE: [&str; 6] = ["path=", "file,", "socket,", "pty", "stdio", "pipe,"];

impl Machine {
    /// The command line of a copy that has its files in `place`, and its RAM at `ram`.
    pub(super) fn copy(
        &self,
        number: u32,
        place: &Path,
        ram: &Path,
    ) -> Result<Vec<String>, Failure> {
        let in_place = |name: &str| format!("{}", place.join(name).display());
        let mut copy = Vec::new();
        let mut words = self.arguments.iter().map(|word| word.replace("%i", &number.to_string()));
        let (mut serials, mut backends, mut is_headless) = (0, 0, false);
        copy.extend(words.next());
        while let Some(word) = words.next() {
            let option =
                word.strip_prefix('-').filter(|rest| rest.starts_with('-')).unwrap_or(&word);
            if DROPPED_FLAGS.contains(&option) {
                continue;
            }
            if option == "-nographic" {
                is_headless = true;
                copy.extend(["-display", "none"].map(String::from));
                continue;
            }
            let is_drive = disks::is_drive(option);
            let looked_at = [&DROPPED[..], &["-serial", "-object", "-chardev"]].concat();
            if !is_drive && !looked_at.contains(&option) {
                copy.push(word);
                continue;
            }
            let Some(value) = words.next() else { break };
            match option {
                _ if is_drive => copy.extend([word, disks::drive(&value, &self.disks, place)?]),
                "-serial" => {
                    let value = match &value[..] {
                        "none" | "null" => value,
                        _ => format!("file:{}", in_place(&format!("serial{serials}"))),
                    };
                    serials += 1;
                    copy.extend([option.to_owned(), value]);
                }
                "-object" if value.contains(&format!("id={}", self.backend)) => {
                    backends += 1;
                    let (id, size, ram) = (&self.backend, self.ram_bytes, ram.display());
                    // Aligned, so that parts of an arena are mapped by huge entries.
                    let backend = format!(
                        "memory-backend-file,id={id},size={size},mem-path={ram},share=off,align=2M"
                    );
                    copy.extend([word, backend]);
                }
                "-chardev" if OF_ONE.iter().any(|word| value.contains(word)) => {
                    let why = format!("copies cannot all have the character device {value}");
                    let fix = "give their command line after --, with %i for the number of each";
                    return Err(Failure::new(USAGE, format!("{why}: {fix}")));
                }
                "-object" | "-chardev" => copy.extend([word, value]),
                _ => {}
            }
        }
        if backends != 1 {
            let id = &self.backend;
            let why = format!("the command line needs one -object memory-backend-memfd,id={id},…");
            return Err(Failure::new(USAGE, why));
        }
        if is_headless && serials == 0 {
            copy.extend(["-serial".to_owned(), format!("file:{}", in_place("serial0"))]);
        }
        let qmp = format!("unix:{},server=on,wait=off", in_place("qmp"));
        copy.extend(["-qmp".to_owned(), qmp, "-incoming".to_owned(), "defer".to_owned()]);
        Ok(copy)
    }
}

/// The words of `/proc/PID/cmdline`.
pub(super) fn words(cmdline: &[u8]) -> Vec<String> {
    let words = cmdline.strip_suffix(b"\0").unwrap_or(cmdline).split(|byte| *byte == 0);
    words.map(|word| OsString::from_vec(word.to_vec()).to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(line: &str) -> Result<String, Failure> {
        let machine = Machine {
            arguments: line.split(' ').map(str::to_owned).collect(),
            folder: "/".into(),
            backend: "ram".into(),
            ram_bytes: 4096,
            disks: Vec::new(),
        };
        machine.copy(3, Path::new("/c"), Path::new("/ram")).map(|words| words.join(" "))
    }

    #[test]
    fn a_copy_has_its_own_memory_monitor_and_console() {
        let line = "qemu -m 1G --object memory-backend-memfd,id=ram,size=1G,share=on -machine \
                    q35,memory-backend=ram -nographic -qmp unix:/q,server=on -S -net none,id=%i";
        let wanted = "qemu -m 1G --object memory-backend-file,id=ram,size=4096,mem-path=/ram,share=off,align=2M \
                      -machine q35,memory-backend=ram -display none -net none,id=3 \
                      -serial file:/c/serial0 -qmp unix:/c/qmp,server=on,wait=off -incoming defer";
        assert_eq!(copy(line).unwrap(), wanted);
        let line = "qemu -object memory-backend-memfd,id=ram -serial file:/x -serial null \
                    -chardev null,id=a -incoming";
        let wanted = "qemu -object memory-backend-file,id=ram,size=4096,mem-path=/ram,share=off,align=2M \
                      -serial file:/c/serial0 -serial null -chardev null,id=a \
                      -qmp unix:/c/qmp,server=on,wait=off -incoming defer";
        assert_eq!(copy(line).unwrap(), wanted);
    }

    #[test]
    fn devices_of_one_process_and_other_memory_are_refused() {
        let backend = "qemu -object memory-backend-memfd,id=ram";
        assert!(copy(&format!("{backend} -chardev socket,id=a,path=/s")).is_err());
        assert!(copy("qemu -m 1G").is_err());
        assert!(copy(&format!("{backend} -object memory-backend-memfd,id=ram")).is_err());
    }

    #[test]
    fn words_may_be_empty() {
        assert_eq!(words(b"a\0\0b c\0"), ["a", "", "b c"]);
    }
}
