//! The report as JSON, for programs.

use std::io;
use std::path::Path;

use super::sink;

/// Writes a report, or any other value with a JSON form, to `path`, or to standard output if that is `-`.
///
/// # Errors
/// Like [`sink::write`].
pub fn write(report: &impl serde::Serialize, path: &Path) -> io::Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    sink::write(path, &(text + "\n"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process;

    use serde_json::{Value, json};

    use super::*;
    use crate::example;

    #[test]
    fn the_file_has_the_documented_shape_and_replaces_the_old_one() {
        let directory = std::env::temp_dir().join(format!("cowslip-json-{}", process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("report.json");
        fs::write(&path, "old").unwrap();
        write(&example::report(), &path).unwrap();

        let text = fs::read_to_string(&path).unwrap();
        assert!(text.ends_with("}\n"));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], "cowslip.bench/1");
        assert!(value["machine"]["memory_bytes"].is_u64());
        assert_eq!(value["rows"][0]["system"], "cowslip");
        assert_eq!(value["rows"][0]["unit"], "ns");
        let skipped =
            value["rows"].as_array().unwrap().iter().find(|row| row["skipped"] != json!(null));
        assert_eq!(skipped.unwrap().get("value"), None);
        assert_eq!(value["ratios"][0]["holds"], true);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn errors_name_the_file_and_the_reason() {
        let error = write(&example::report(), Path::new("/proc/nowhere/report.json")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/proc/nowhere/") && text.contains("os error 2"), "{text}");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
