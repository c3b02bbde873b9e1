//! The error of a search for credentials.

use std::error::Error as StdError;
use std::fmt;

/// The places that were searched.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Unset variables that could hold credentials.
    pub(crate) unset: String,
    /// The service that was asked instead.
    pub(crate) service: String,
    pub(crate) note: &'static str,
}

/// There are no credentials, or the existing ones are useless.
#[derive(Debug)]
pub(crate) struct MissingCredentials {
    pub(crate) places: Places,
    pub(crate) why: String,
}

impl fmt::Display for MissingCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Places { unset, service, note } = &self.places;
        write!(
            f,
            "no credentials: {unset} are not set; {service} gives none: {} ({note})",
            self.why
        )
    }
}

impl StdError for MissingCredentials {}
