//! Unix connections of a holder: CRIU cannot keep one end of a connection without the other.

use cowslip_sys::error::Result;

use crate::branch::close_outside;
use crate::hold::Holder;

impl Holder {
    /// Closes the holder's Unix connections to other processes, as their other side would. The program keeps them.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](cowslip_sys::error::ErrorKind::Busy) once the holder is lent;
    /// [`ErrorKind::Vanished`](cowslip_sys::error::ErrorKind::Vanished) if it has been killed.
    pub fn close_connections(&mut self) -> Result<()> {
        let states = self.descriptors().to_vec();
        self.calls("close a copy's connections", |caller, held| {
            close_outside(caller, held, &states)
        })
    }
}
