//! Tracepoints by their names: numbers and fields, read from tracefs.

use std::fmt;
use std::path::PathBuf;

use crate::Errno;

const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// A place in the kernel's code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tracepoint {
    /// Its number on this machine, until the next boot.
    pub id: u32,
    fields: Vec<(String, Field)>,
}

/// The place of a number in a tracepoint's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    offset: usize,
    size: usize,
    is_signed: bool,
}

/// The reason why a tracepoint is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TracepointError {
    /// This kernel has no such tracepoint (`ENOENT`).
    Absent,
    /// The kernel has tracefs, but it is not mounted.
    Unmounted,
    /// tracefs may not be read (`EACCES`, `EPERM`).
    Denied,
    /// Another error.
    Other(Errno),
    /// The description is not understood.
    Strange,
}

impl fmt::Display for TracepointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("there is no such tracepoint in tracefs"),
            Self::Unmounted => f.write_str("tracefs is not mounted"),
            Self::Denied => f.write_str("tracefs may not be read"),
            Self::Other(errno) => write!(f, "{}", std::io::Error::from(*errno)),
            Self::Strange => f.write_str("its format is not understood"),
        }
    }
}

impl std::error::Error for TracepointError {}

impl Tracepoint {
    /// The tracepoint of this name, such as `syscalls/sys_enter_mmap`.
    ///
    /// # Errors
    /// [`TracepointError::Denied`] for users other than root, with the usual permissions.
    pub fn find(name: &str) -> Result<Self, TracepointError> {
        let format = tracefs()?.join("events").join(name).join("format");
        let text = std::fs::read_to_string(format).map_err(|error| refused(&error))?;
        Self::parse(&text).ok_or(TracepointError::Strange)
    }

    /// Parses the text of a `format` file.
    ///
    /// ```
    /// use cowslip_sys::perf::Tracepoint;
    /// let text = "ID: 7\n\tfield:unsigned int order;\toffset:4;\tsize:4;\tsigned:0;\n";
    /// let allocation = Tracepoint::parse(text).unwrap();
    /// let order = allocation.field("order").unwrap();
    /// assert_eq!((allocation.id, order.read(&[0, 0, 0, 0, 9, 0, 0, 0])), (7, Some(9)));
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let mut id = None;
        let mut fields = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(number) = line.strip_prefix("ID:") {
                id = number.trim().parse().ok();
            } else if let Some(field) = line.strip_prefix("field:") {
                fields.push(field_of(field)?);
            }
        }
        Some(Self { id: id?, fields })
    }

    /// The place of its field `name`.
    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|(key, _)| key == name).map(|(_, field)| *field)
    }
}

/// The directory in which tracefs is mounted.
///
/// # Errors
/// As [`Tracepoint::find`].
pub fn tracefs() -> Result<PathBuf, TracepointError> {
    let mut error = TracepointError::Absent;
    for root in ROOTS.map(PathBuf::from) {
        match std::fs::metadata(root.join("events")).map_err(|error| refused(&error)) {
            Ok(_) => return Ok(root),
            Err(TracepointError::Absent) => {}
            Err(TracepointError::Denied) => error = TracepointError::Denied,
            Err(other) => return Err(other),
        }
    }
    Err(if error == TracepointError::Absent && has_tracefs() {
        TracepointError::Unmounted
    } else {
        error
    })
}

fn refused(error: &std::io::Error) -> TracepointError {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) => TracepointError::Absent,
        Some(Errno::ACCESS | Errno::PERM) => TracepointError::Denied,
        errno => TracepointError::Other(errno.unwrap_or(Errno::IO)),
    }
}

fn has_tracefs() -> bool {
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    filesystems.split_whitespace().any(|word| word == "tracefs")
}

fn field_of(line: &str) -> Option<(String, Field)> {
    let mut parts = line.split(';').map(str::trim);
    let declaration = parts.next()?;
    let mut number = |name: &str| parts.next()?.strip_prefix(name)?.parse::<usize>().ok();
    let (offset, size) = (number("offset:")?, number("size:")?);
    let is_signed = number("signed:")? != 0;
    let name = declaration.split('[').next()?.rsplit([' ', '*']).next()?;
    Some((name.to_owned(), Field { offset, size, is_signed }))
}

impl Field {
    /// Reads the number from a tracepoint's bytes, sign-extended; `None` if the bytes end too early, or the size is
    /// none of 1, 2, 4 or 8 bytes.
    pub fn read(self, bytes: &[u8]) -> Option<u64> {
        let bytes = bytes.get(self.offset..self.offset.checked_add(self.size)?)?;
        let number = match *bytes {
            [a] => u64::from(a),
            [a, b] => u64::from(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
            _ => u64::from_ne_bytes(bytes.try_into().ok()?),
        };
        let unused = 64 - 8 * self.size as u32;
        Some(if self.is_signed { ((number << unused) as i64 >> unused) as u64 } else { number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_declarations() {
        let text = "name: x\nID: 174\nformat:\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:const char * path;\toffset:8;\tsize:8;\tsigned:0;\n\
            \tfield:unsigned long args[6];\toffset:16;\tsize:48;\tsigned:0;\n\
            \tfield:long ret;\toffset:64;\tsize:8;\tsigned:1;\n";
        let point = Tracepoint::parse(text).unwrap();
        assert_eq!(point.id, 174);
        for name in ["common_pid", "path", "args", "ret"] {
            assert!(point.field(name).is_some(), "{name}");
        }
        let mut bytes = [0xffu8; 72];
        assert_eq!(point.field("common_pid").unwrap().read(&bytes), Some(u64::MAX), "minus one");
        assert_eq!(point.field("args").unwrap().read(&bytes), None);
        bytes[64..].copy_from_slice(&7u64.to_ne_bytes());
        assert_eq!(point.field("ret").unwrap().read(&bytes), Some(7));
        assert_eq!(point.field("ret").unwrap().read(&bytes[..71]), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["", "ID: many", "ID: 7\nfield:int a;\toffset:x;\tsize:4;\tsigned:1;"] {
            assert_eq!(Tracepoint::parse(bad), None, "{bad}");
        }
        let endless = "ID: 1\nfield:int a; offset:18446744073709551615; size:8; signed:0;";
        assert_eq!(Tracepoint::parse(endless).unwrap().field("a").unwrap().read(&[0; 64]), None);
    }
}
