//! Settings of the whole system, changed for a while.

use std::fs::{self, File};
use std::io;

use super::child::Child;
use super::error::{Error, Result, during};

/// The directory of the settings of transparent huge pages.
pub(crate) const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

/// Allows changes of some settings while it lives, and restores them afterwards. A child does that, even if this
/// process is killed.
#[derive(Debug)]
pub(crate) struct HeldSettings {
    _restorer: Child,
}

impl HeldSettings {
    /// Remembers the values of these files.
    ///
    /// # Errors
    /// [`Error::Denied`] if one may not be changed.
    pub(crate) fn hold(paths: &[String]) -> Result<Self> {
        let mut will = Vec::new();
        for path in paths {
            let file = File::options().write(true).open(path).map_err(|error| {
                let why = format!("change {path}, the whole system's: {error}: run as root");
                match error.kind() {
                    io::ErrorKind::PermissionDenied => Error::Denied(why),
                    _ => Error::Failed(why),
                }
            })?;
            will.push((file, read(path)?));
        }
        Ok(Self { _restorer: Child::executor(will)? })
    }
}

/// Changes a setting that is [held](HeldSettings).
pub(crate) fn write(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).map_err(during(format_args!("write {text} to {path}")))
}

/// The value of a setting, in the form in which it is written.
pub(crate) fn read(path: &str) -> Result<String> {
    let text = fs::read_to_string(path).map_err(during(path))?;
    Ok(chosen(&text).to_owned())
}

pub(crate) fn is_there(path: &str) -> bool {
    fs::exists(path).unwrap_or(false)
}

/// The word in brackets of a choice, or the whole of any other value.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_back_as_they_are_written() {
        assert_eq!(chosen("always defer [madvise] never\n"), "madvise");
        assert_eq!(chosen("4096\n"), "4096");
    }
}
