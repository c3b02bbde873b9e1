//! What is started by services: open to every user, and in the hands of root alone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cowslip_sys::process;

/// The first part of a path that not every user may go through, or read.
pub(crate) fn closed_to_others(file: &Path) -> Option<PathBuf> {
    let is_open = |part: &&Path| {
        let needed = if *part == file { 0o4 } else { 0o1 };
        fs::metadata(part).is_ok_and(|metadata| metadata.mode() & needed != 0)
    };
    file.ancestors().find(|part| !is_open(part)).map(Path::to_owned)
}

/// Why a file below `root` may become another one by the hand of a user who is not root: it or a folder on its way is that
/// user's, or is open to be written. A service that runs it would be that user's.
pub(crate) fn changeable(file: &Path, root: &Path) -> Option<String> {
    // A system below a directory may be built by a user for whom it is root's.
    let owners = [0, process::effective_uid()];
    let why = |part: &Path| {
        let there = fs::metadata(part).ok()?;
        let why = match there {
            there if !owners.contains(&there.uid()) => format!("belongs to user {}", there.uid()),
            there if there.mode() & 0o022 != 0 => "may be written by others".to_owned(),
            _ => return None,
        };
        Some(format!("services cannot trust {}: {} {why}", file.display(), part.display()))
    };
    file.ancestors().take_while(|part| part.starts_with(root)).find_map(why)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn a_file_is_only_as_safe_as_the_folders_on_its_way() {
        let root = std::env::temp_dir().join(format!("cowslip-access-{}", process::pid()));
        let folder = root.join("usr/bin");
        let file = folder.join("cowslip");
        fs::create_dir_all(&folder).unwrap();
        fs::write(&file, "").unwrap();
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for path in [&root, &root.join("usr"), &folder, &file] {
            set(path, 0o755);
        }
        assert_eq!(changeable(&file, &root), None);
        for (path, mode) in [(&file, 0o757), (&file, 0o775), (&folder, 0o777), (&root, 0o1777)] {
            set(path, mode);
            let why = changeable(&file, &root).unwrap_or_default();
            assert!(
                why.ends_with(&format!("{} may be written by others", path.display())),
                "{why}"
            );
            set(path, 0o755);
        }
        if process::effective_uid() == 0 {
            chown(&folder, Some(65534), None).unwrap();
            let why = changeable(&file, &root).unwrap_or_default();
            assert!(why.ends_with("belongs to user 65534"), "{why}");
        } else {
            println!("SKIPPED: root: only it can give a folder away");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
