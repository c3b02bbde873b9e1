//! What stores refuse, as this project's errors.

use std::path::Path;

use cowslip::{Error, ErrorKind};
use object_store::Error as StoreError;

/// Longer answers of a store are cut.
const MOST_CHARACTERS: usize = 300;

/// A store's refusal of something done to an object.
pub(crate) fn store_error(operation: &'static str, name: &Path, error: &StoreError) -> Error {
    let (kind, why) = match error {
        StoreError::NotFound { .. } => (ErrorKind::File, "there is no such object".to_owned()),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            let why = "the store does not permit it: see the credentials in the environment";
            (ErrorKind::Denied, why.to_owned())
        }
        StoreError::Precondition { .. } => (ErrorKind::Vanished, REPLACED.to_owned()),
        StoreError::NotImplemented { .. } | StoreError::NotSupported { .. } => {
            (ErrorKind::Unsupported, "this kind of store cannot do that".to_owned())
        }
        other => (ErrorKind::File, reason(other)),
    };
    Error::new(kind, operation).of_file(name).hint(why)
}

pub(crate) const REPLACED: &str = "the object was replaced since it was opened: open it again";

/// Whether another attempt may have another answer.
pub(crate) fn is_passing(error: &StoreError) -> bool {
    matches!(error, StoreError::Generic { .. } | StoreError::JoinError { .. })
}

/// What went wrong, down to its cause.
pub(crate) fn reason(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        cause = inner.source();
    }
    let line: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
