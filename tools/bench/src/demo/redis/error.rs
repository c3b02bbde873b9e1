//! Reasons why the Redis demo could not go on.

use std::path::PathBuf;
use std::{error, fmt, io};

/// The failed action, its object, and the answer of the system or the server.
#[derive(Debug)]
pub enum Error {
    /// There is no such `redis-server`.
    NoServer {
        /// The program to run.
        program: PathBuf,
        /// The reason why it did not run.
        source: io::Error,
    },
    /// An option that no run can satisfy.
    BadOption(String),
    /// A server did not come up.
    NotStarted {
        /// The server.
        server: String,
        /// The missing condition.
        why: String,
        /// The end of its output.
        log: String,
    },
    /// A server gave an unexpected answer to a request.
    BadReply {
        /// The command.
        request: &'static str,
        /// The answer.
        reply: String,
    },
    /// A system call failed.
    Io {
        /// The failed action.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
    /// The caller asked to stop.
    Interrupted,
}

impl Error {
    /// For `map_err`: an I/O error while `doing` something.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing: doing.into(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoServer { program, source } => {
                let name = program.file_name().unwrap_or_default().display();
                let program = program.display();
                write!(f, "cannot run {program}: {source}; try `apt-get install {name}`")
            }
            Self::BadOption(why) => f.write_str(why),
            Self::NotStarted { server, why, log } if log.is_empty() => {
                write!(f, "{server} did not start: {why}")
            }
            Self::NotStarted { server, why, log } => {
                write!(f, "{server} did not start: {why}; its last words: {log}")
            }
            Self::BadReply { request, reply } => write!(f, "Redis answered {request} with {reply}"),
            Self::Io { doing, source } => write!(f, "{doing}: {source}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::NoServer { source, .. } | Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<Error> for crate::error::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Interrupted => Self::Interrupted,
            other => Self::Failed(other.to_string()),
        }
    }
}
