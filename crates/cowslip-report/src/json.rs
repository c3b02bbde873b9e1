//! Values as JSON, for programs.

use std::io;
use std::path::Path;

use super::sink;

/// Writes a value with a JSON form to `path`, or to standard output if that is `-`.
///
/// # Errors
/// Like [`sink::write`].
pub fn write(value: &impl serde::Serialize, path: &Path) -> io::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    sink::write(path, &(text + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file_and_the_reason() {
        let error = write(&1, Path::new("/proc/nowhere/report.json")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/proc/nowhere/") && text.contains("os error 2"), "{text}");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
