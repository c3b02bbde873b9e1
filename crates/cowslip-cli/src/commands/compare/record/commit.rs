//! The commit of the working folder.

use std::process::{Command, Stdio};

/// The digits that people need.
const SHORT: usize = 9;

/// The commit that is checked out here, with `-dirty` if files differ from it; `None` outside of a repository, and without
/// git.
pub(super) fn of_this_folder() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]);
    let output = git.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}

/// A commit's first digits; any other text as it is.
pub(in crate::commands::compare) fn short(commit: &str) -> String {
    let (hash, suffix) = match commit.strip_suffix("-dirty") {
        Some(hash) => (hash, "-dirty"),
        None => (commit, ""),
    };
    match hash.len() > SHORT && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => format!("{}{suffix}", &hash[..SHORT]),
        false => commit.to_owned(),
    }
}
