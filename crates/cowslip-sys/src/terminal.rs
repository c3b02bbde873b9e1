//! A terminal: its size, and single key presses.

use rustix::fs::{Mode, OFlags};
use rustix::termios::{self, LocalModes, OptionalActions, Termios};

use crate::{AsFd, BorrowedFd, OwnedFd, Result};

/// Columns and lines of the terminal behind `fd`; `ENOTTY` if it is none.
pub fn size(fd: BorrowedFd<'_>) -> Result<(usize, usize)> {
    let size = termios::tcgetwinsize(fd)?;
    Ok((size.ws_col.into(), size.ws_row.into()))
}

/// Returns true if this process is in the foreground of its controlling terminal, whose keys send signals to all
/// processes of that group (`termios(3)`).
pub fn is_foreground() -> bool {
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(c"/dev/tty", flags, Mode::empty());
    terminal.and_then(termios::tcgetpgrp).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Delivers keys at once and without echo, until it is dropped. Those that send signals still do.
#[derive(Debug)]
#[must_use = "dropping it puts the terminal back"]
pub struct KeyByKey {
    terminal: OwnedFd,
    before: Termios,
}

impl KeyByKey {
    /// `ENOTTY` if it is no terminal.
    pub fn enter(terminal: OwnedFd) -> Result<Self> {
        let before = termios::tcgetattr(&terminal)?;
        let mut mode = before.clone();
        mode.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        termios::tcsetattr(&terminal, OptionalActions::Now, &mode)?;
        Ok(Self { terminal, before })
    }

    /// The terminal.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }

    /// A pressed key; `None` if there is none, or if the terminal is gone.
    pub fn key(&self) -> Result<Option<u8>> {
        let mut key = [0];
        let read = rustix::io::read(&self.terminal, &mut key)?;
        Ok((read > 0).then_some(key[0]))
    }
}

impl Drop for KeyByKey {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}
