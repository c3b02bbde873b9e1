//! The texts of errors are also read in C and Python: none may contain words of Rust.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

/// The sources below a folder, without their tests.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let is_comment = |line: &&str| line.trim_start().starts_with("//");
            let code: Vec<&str> = code.lines().filter(|line| !is_comment(line)).collect();
            found.push((path, code.join("\n")));
        }
    }
    found
}

/// The literals of a source, with escapes left unread.
fn literals(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some((before, after)) = rest.split_once('"') {
        let is_character = before.ends_with('\'') || before.ends_with("b'");
        let ends = |&(at, _): &(usize, char)| !after[..at].ends_with('\\');
        let quotes = after.char_indices().filter(|(_, character)| *character == '"');
        let Some((end, _)) = quotes.clone().find(ends) else { break };
        if is_character {
            rest = after;
            continue;
        }
        found.push(&after[..end]);
        rest = &after[end + 1..];
    }
    found
}

#[test]
fn no_text_has_words_of_rust() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    if !source.is_dir() {
        return support::skip("sources", "the tests were brought here without them");
    }
    let mut seen = 0;
    for (path, code) in sources(&source) {
        // Serde's names are not texts.
        for literal in literals(&code).into_iter().filter(|literal| literal.contains(' ')) {
            seen += 1;
            for word in ["::", "(..)", "()", "Arena.", "Some(", "None"] {
                assert!(!literal.contains(word), "{}: {literal}", path.display());
            }
        }
    }
    assert!(seen > 300, "{seen} texts were found");
}
