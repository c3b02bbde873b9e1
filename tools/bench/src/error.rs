//! Reasons why a measurement has no value.

use std::fmt;

/// The reason why a measurement has no value.
#[derive(Debug, Clone)]
pub enum Error {
    /// The user asked to stop.
    Interrupted,
    /// Only root may do this, without which nothing can be measured.
    Denied(String),
    /// An action, and why it failed.
    Failed(String),
}

/// `Result` with [`Error`].
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// For `map_err`: adds the action that failed.
pub(super) fn during<E: fmt::Display>(doing: impl fmt::Display) -> impl FnOnce(E) -> Error {
    move |error| Error::Failed(format!("{doing}: {error}"))
}

impl From<cowslip::Error> for Error {
    fn from(error: cowslip::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => f.write_str("interrupted"),
            Self::Denied(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}
