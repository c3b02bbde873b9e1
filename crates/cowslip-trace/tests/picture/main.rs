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
fn the_library_is_the_one_that_its_readme_names() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/vendor/uplot");
    let readme = std::fs::read_to_string(format!("{folder}/README.md")).unwrap();
    for file in ["uPlot.iife.min.js", "uPlot.min.css"] {
        let sum = Command::new("sha256sum").arg(format!("{folder}/{file}")).output().unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        let sum = sum.split(' ').next().unwrap();
        assert!(
            sum.len() == 64 && readme.contains(&format!("| `{file}` | `{sum}` |")),
            "{file} {sum}"
        );
    }
}
