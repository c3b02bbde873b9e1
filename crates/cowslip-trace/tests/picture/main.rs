//! The picture of a trace: the page in a browser, and the library in it.

mod browser;
mod page;
mod story;

use std::path::PathBuf;
use std::process::Command;

/// A directory of a test, removed when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("cowslip-picture-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_library_is_the_one_that_its_sums_name() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/vendor/uplot");
    let mut check = Command::new("sha256sum");
    let checked =
        check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(folder).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    for file in ["uPlot.iife.min.js: OK\n", "uPlot.min.css: OK\n"] {
        assert!(String::from_utf8_lossy(&checked.stdout).contains(file), "{checked:?}");
    }
}
