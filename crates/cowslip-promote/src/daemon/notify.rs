//! `sd_notify(3)`: reports the daemon's state to systemd; does nothing without systemd.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use cowslip_sys::process;

/// The service manager, if one is to be told.
pub(super) struct Manager(Option<OsString>);

impl Manager {
    /// The manager of this service; none if the service is a command that the session started, which tells it itself.
    pub(super) fn find(has_command: bool) -> Self {
        Self(std::env::var_os("NOTIFY_SOCKET").filter(|_| !has_command))
    }

    /// The daemon serves.
    pub(super) fn ready(&self) {
        self.tell("READY=1");
    }

    /// The configuration is being read again; [`Self::ready`] says that it was.
    pub(super) fn reloading(&self) {
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", process::now_ns() / 1_000));
    }

    /// The daemon ends.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// A line for `systemctl status`.
    pub(super) fn status(&self, text: &str) {
        self.tell(&format!("STATUS={text}"));
    }

    fn tell(&self, message: &str) {
        let Some(path) = &self.0 else { return };
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(path),
        };
        // The daemon works even if systemd does not listen or read.
        let _ = address.and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.send_to_addr(message.as_bytes(), &address)
        });
    }
}
