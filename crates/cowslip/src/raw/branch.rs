//! The messages between `cowslip branch` and a program at its [branch point](crate::branch_point).
//!
//! ```text
//!  command                              program                    supervisor                 copies
//!    │── Branch(n) ───────────────────────▶│ fork                      │
//!    │◀─────────────────────────────────── Ready ───────────────────────│
//!    │── Variable … ───────────────────────┼──────────────────────────▶│
//!    │── Copy (argument, three streams) ───┼──────────────────────────▶│ fork, n times ────────────▶│ wait
//!    │                                     │ goes on                   │ all are there ────────────▶│
//!    │◀─────────────────────────────────── Running ─────────────────────────────────────────────────│ return
//!    │── Signal ───────────────────────────────────────────────────────▶│ kill(2)
//!    │◀─────────────────────────────────── Ended ───────────────────────│ wait(2)
//! ```
//! The supervisor is forked from the program, and the copies from it: nothing runs in it that could change memory between two
//! forks, so that all copies are of one instant, and the program goes on after one fork. It kills the copies when the
//! command has closed the connection, and ends after them.
//!
//! Each message is a packet: a byte for its kind, numbers of four bytes in this machine's order, and text up to the
//! end.

/// The version of these messages.
pub const VERSION: u32 = 1;

/// The length of the longest message.
pub const MOST_BYTES: usize = TEXT_BYTES + 16;

/// The longest argument, and the longest variable: the limit of `execve(2)`.
pub const TEXT_BYTES: usize = 128 << 10;

/// The length of a copy's random seed, which is in its environment as hexadecimal digits.
pub const SEED_BYTES: usize = 32;

/// The name of the sockets' directories, with the user's number in `/tmp`.
pub const DIRECTORY: &str = "cowslip-branch";

/// True if a program's branch point may have this name: it is a part of a file's name, and is no process id.
pub fn is_name(name: &str) -> bool {
    const MOST: usize = 32;
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MOST).contains(&name.len())
        && name.bytes().all(is_fit)
        && !name.bytes().all(|byte| byte.is_ascii_digit())
}

/// The file name of a process' socket, for a branch point of that name.
pub fn file_name(pid: i32, name: Option<&str>) -> String {
    name.map_or_else(|| pid.to_string(), |name| format!("{pid}-{name}"))
}

/// The process and the name in a socket's file name.
pub fn parse_file_name(file: &str) -> Option<(i32, Option<&str>)> {
    let (pid, name) = file.split_once('-').map_or((file, None), |(pid, name)| (pid, Some(name)));
    let is_whole = name.is_none_or(is_name);
    pid.parse().ok().filter(|pid| *pid > 0 && is_whole).map(|pid| (pid, name))
}

/// A message from the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// Asks for copies of a program that knows this [version](VERSION).
    Branch {
        /// The command's [`VERSION`].
        version: u32,
        /// Their number: at least one.
        copies: u32,
    },
    /// Tells the program to go on.
    Release,
    /// `NAME=VALUE`, for the environment of the copies that are asked for later.
    Variable(&'a [u8]),
    /// The next copy's argument, if it has one. With it come its standard streams.
    Copy(Option<&'a [u8]>),
    /// A signal for all copies.
    Signal(i32),
}

/// A message from the program, its supervisor or a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The program goes on.
    Released,
    /// The supervisor is there, ready for the copies' variables and arguments.
    Ready,
    /// There are no copies.
    Failed {
        /// The reason: an error number.
        errno: i32,
        /// The number of copies that there were, which are killed.
        started: u32,
    },
    /// A copy returns from its branch point, and all the others are there.
    Running {
        /// Its number.
        copy: u32,
        /// Its process.
        pid: i32,
    },
    /// A copy has ended.
    Ended {
        /// Its number.
        copy: u32,
        /// Its status, in the form of `wait(2)`.
        status: i32,
    },
}

/// The first `N` numbers of a message, and the rest of it.
fn numbers<const N: usize>(bytes: &[u8]) -> Option<([i32; N], &[u8])> {
    let mut numbers = [0; N];
    let mut rest = bytes;
    for number in &mut numbers {
        let (first, after) = rest.split_first_chunk()?;
        *number = i32::from_ne_bytes(*first);
        rest = after;
    }
    Some((numbers, rest))
}

fn message(tag: u8, numbers: &[i32], text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    numbers.iter().for_each(|number| bytes.extend(number.to_ne_bytes()));
    bytes.extend(text);
    bytes
}

impl<'a> Request<'a> {
    /// Encodes it as a packet.
    pub fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Branch { version, copies } => {
                message(b'B', &[version.cast_signed(), copies.cast_signed()], &[])
            }
            Self::Release => message(b'R', &[], &[]),
            Self::Variable(text) => message(b'V', &[], text),
            Self::Copy(None) => message(b'C', &[], &[]),
            Self::Copy(Some(text)) => message(b'A', &[], text),
            Self::Signal(signal) => message(b'S', &[signal], &[]),
        }
    }

    /// Decodes a packet; `None` if it is not a request.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        Some(match tag {
            b'B' => {
                let ([version, copies], _) = numbers(rest)?;
                Self::Branch { version: version.cast_unsigned(), copies: copies.cast_unsigned() }
            }
            b'R' => Self::Release,
            b'V' => Self::Variable(rest),
            b'C' => Self::Copy(None),
            b'A' => Self::Copy(Some(rest)),
            b'S' => {
                let ([signal], _) = numbers(rest)?;
                Self::Signal(signal)
            }
            _ => return None,
        })
    }
}

impl Reply {
    /// Encodes it as a packet.
    pub fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Released => message(b'R', &[], &[]),
            Self::Ready => message(b'Y', &[], &[]),
            Self::Failed { errno, started } => message(b'F', &[errno, started.cast_signed()], &[]),
            Self::Running { copy, pid } => message(b'G', &[copy.cast_signed(), pid], &[]),
            Self::Ended { copy, status } => message(b'E', &[copy.cast_signed(), status], &[]),
        }
    }

    /// Decodes a packet; `None` if it is not a reply.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        let pair = || numbers::<2>(rest).map(|(pair, _)| pair);
        Some(match tag {
            b'R' => Self::Released,
            b'Y' => Self::Ready,
            b'F' => pair().map(|[errno, n]| Self::Failed { errno, started: n.cast_unsigned() })?,
            b'G' => pair().map(|[n, pid]| Self::Running { copy: n.cast_unsigned(), pid })?,
            b'E' => pair().map(|[n, status]| Self::Ended { copy: n.cast_unsigned(), status })?,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_written() {
        let requests = [
            Request::Branch { version: VERSION, copies: u32::MAX },
            Request::Release,
            Request::Variable(b"A=\xff"),
            Request::Copy(None),
            Request::Copy(Some(b"")),
            Request::Copy(Some(b"x y")),
            Request::Signal(15),
        ];
        for request in requests {
            assert_eq!(Request::parse(&request.to_bytes()), Some(request));
        }
        let replies = [
            Reply::Released,
            Reply::Ready,
            Reply::Failed { errno: 11, started: 7 },
            Reply::Running { copy: 3, pid: 4711 },
            Reply::Ended { copy: 3, status: 0x8b },
        ];
        for reply in replies {
            let bytes = reply.to_bytes();
            assert_eq!(Reply::parse(&bytes), Some(reply));
            assert_eq!(Reply::parse(&bytes[..bytes.len() - 1]), None, "{reply:?} cut short");
        }
        assert_eq!(
            (Request::parse(b""), Request::parse(b"Bxy"), Reply::parse(b"?")),
            (None, None, None)
        );
    }

    #[test]
    fn a_name_is_a_part_of_a_file_name_and_no_number() {
        for name in ["shop", "a.b-c_9", "1x"] {
            assert!(is_name(name), "{name}");
            assert_eq!(parse_file_name(&file_name(42, Some(name))), Some((42, Some(name))));
        }
        for name in ["", "4711", "a/b", "a b", "é", &"x".repeat(33)] {
            assert!(!is_name(name), "{name}");
        }
        assert_eq!(parse_file_name(&file_name(42, None)), Some((42, None)));
        for file in ["", "x", "-3", "42-", "0-x", "42-4711"] {
            assert_eq!(parse_file_name(file), None, "{file}");
        }
    }
}
