//! The system that is prepared: its files, marked as ours, and the commands that change it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cowslip_sys::atomic_file;

use super::report::Trouble;

/// The first line of every file that setup writes; it changes and removes no others.
const MARK: &str = "# Written by `cowslip setup`, and removed by `cowslip setup --undo`.\n";

/// The running system, or one below a directory.
pub(crate) struct Machine {
    root: Option<PathBuf>,
    dry_run: bool,
}

/// The content of a file.
pub(crate) enum Content {
    Nothing,
    /// Setup's own text, below its mark.
    Ours(String),
    /// Not setup's.
    Foreign(String),
}

impl Machine {
    pub(crate) fn new(root: Option<PathBuf>, dry_run: bool) -> Self {
        Self { root, dry_run }
    }

    /// Returns true for the running system, which has settings to change besides its files.
    pub(crate) fn is_running(&self) -> bool {
        self.root.is_none()
    }

    pub(crate) fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// The place of an absolute path in that system.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Returns `None` if there is no such file.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Result<Option<String>, Trouble> {
        let path = self.path(path);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
                _ => Err(of_file("read", &path, &error)),
            },
        }
    }

    pub(crate) fn content(&self, path: impl AsRef<Path>) -> Result<Content, Trouble> {
        Ok(match self.read(path)? {
            None => Content::Nothing,
            Some(text) => match text.strip_prefix(MARK) {
                Some(ours) => Content::Ours(ours.to_owned()),
                None => Content::Foreign(text),
            },
        })
    }

    /// The content of a file that setup may write. Refuses one that is not setup's.
    pub(crate) fn check_ours(&self, path: &str) -> Result<Option<String>, Trouble> {
        match self.content(path)? {
            Content::Nothing => Ok(None),
            Content::Ours(text) => Ok(Some(text)),
            Content::Foreign(_) => {
                let why = format!("{path} is there, and `cowslip setup` did not write it");
                Err(Trouble::new(why, "look at it, move it away, and run this again"))
            }
        }
    }

    /// Returns true if the file had to be changed. A file that is not setup's is left alone.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<bool, Trouble> {
        if self.check_ours(path)?.as_deref() == Some(text) {
            return Ok(false);
        }
        if !self.dry_run {
            let path = self.path(path);
            path.parent()
                .map_or(Ok(()), fs::create_dir_all)
                .and_then(|()| {
                    atomic_file::replace(&path, format!("{MARK}{text}").as_bytes(), 0o644)
                })
                .map_err(|error| of_file("write", &path, &error))?;
        }
        Ok(true)
    }

    /// Removes a file that setup wrote, and the folder of a service's drop-ins if that leaves it empty.
    pub(crate) fn remove(&self, path: &str) -> Result<bool, Trouble> {
        if !matches!(self.content(path)?, Content::Ours(_)) {
            return Ok(false);
        }
        if !self.dry_run {
            let path = self.path(path);
            fs::remove_file(&path).map_err(|error| of_file("remove", &path, &error))?;
            let folder =
                path.parent().filter(|folder| folder.to_string_lossy().ends_with(".service.d"));
            if let Some(folder) = folder {
                // It is not empty if others use it.
                let _ = fs::remove_dir(folder);
            }
        }
        Ok(true)
    }

    /// Returns true if root's folders of commands have one of this name.
    pub(crate) fn has_command(&self, name: &str) -> bool {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .any(|folder| Path::new(folder).join(name).exists())
    }

    /// Runs a command that changes the system.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<(), Trouble> {
        if self.dry_run {
            return Ok(());
        }
        let line = [&[program], arguments].concat().join(" ");
        let ran = Command::new(program)
            .args(arguments)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .output();
        match ran {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
                Err(Trouble::new(
                    format!("`{line}`: {}: {said}", output.status),
                    "repair that, and run this again",
                ))
            }
            Err(error) => {
                Err(Trouble::new(format!("`{line}`: {error}"), "install it, and run this again"))
            }
        }
    }

    /// Writes to a kernel setting.
    pub(crate) fn set(&self, path: &str, word: &str) -> Result<(), Trouble> {
        match self.dry_run {
            true => Ok(()),
            false => {
                fs::write(path, word).map_err(|error| of_file("write to", Path::new(path), &error))
            }
        }
    }
}

pub(crate) fn of_file(what: &str, path: &Path, error: &io::Error) -> Trouble {
    let fix = match error.kind() {
        io::ErrorKind::PermissionDenied => "run it as root, outside containers",
        io::ErrorKind::ReadOnlyFilesystem if path.starts_with("/sys") => {
            "it is the host's setting: run `cowslip setup` there as well, or keep it by --keep-shmem-enabled"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "a system that is made of images is set up where they are built: --root"
        }
        _ => "repair that, and run this again",
    };
    Trouble::new(format!("cannot {what} {}: {error}", path.display()), fix)
}
