//! `sd_notify(3)`: reports the daemon's state to systemd; does nothing without systemd.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use cowslip_sys::process;

/// The daemon serves.
pub(super) fn ready() {
    tell("READY=1");
}

/// The configuration is being read again; [`ready`] says that it was.
pub(super) fn reloading() {
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", process::now_ns() / 1_000));
}

/// The daemon ends.
pub(super) fn stopping() {
    tell("STOPPING=1");
}

/// A line for `systemctl status`.
pub(super) fn status(text: &str) {
    tell(&format!("STATUS={text}"));
}

fn tell(message: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    // The daemon works even if systemd does not listen or read.
    let _ = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(message.as_bytes(), &address)
    });
}
