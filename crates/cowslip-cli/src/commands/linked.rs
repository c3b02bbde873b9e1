//! What a program is linked with, as its dynamic loader says without running it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::elf::{self, Kind};
use super::run::find;

/// Allocators that take their memory by `mmap` through libc.
const ALLOCATORS: [&str; 6] =
    ["libjemalloc", "libtcmalloc", "libmimalloc", "libsnmalloc", "libhoard", "libscudo"];
/// Interpreters that name interpreters, at most.
const DEEPEST: usize = 4;

/// The allocator that a program, or the interpreter of a script, brings along.
pub(crate) fn own_allocator(program: &Path) -> Option<String> {
    let mut program = program.to_owned();
    for _ in 0..DEEPEST {
        let (kind, words) = elf::interpreter(&program)?;
        if kind == Kind::Dynamic {
            return libraries(Path::new(&words[0]), &program)
                .into_iter()
                .find(|library| ALLOCATORS.iter().any(|allocator| library.starts_with(allocator)));
        }
        program = match words.as_slice() {
            [env, name, ..] if env.ends_with("/env") => find(name.as_ref())?,
            [interpreter, ..] => PathBuf::from(interpreter),
            [] => return None,
        };
    }
    None
}

/// The names of the libraries that a program needs, and that these need.
fn libraries(loader: &Path, program: &Path) -> Vec<String> {
    // Other loaders would run the program.
    let is_glibc = loader.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with("ld-linux") || name.starts_with("ld64") || name == "ld.so.1"
    });
    if !is_glibc {
        return Vec::new();
    }
    let mut list = Command::new(loader);
    list.arg("--list").arg(program).stdin(Stdio::null()).stderr(Stdio::null());
    let listed = list.env_remove("LD_PRELOAD").output().map(|output| output.stdout);
    String::from_utf8_lossy(&listed.unwrap_or_default())
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(|name| name.rsplit('/').next().unwrap_or(name).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_is_among_the_libraries_of_this_program_and_no_allocator() {
        let this = Path::new("/proc/self/exe").read_link().unwrap();
        let (_, loader) = elf::interpreter(&this).unwrap();
        let found = libraries(Path::new(&loader[0]), &this);
        assert!(found.iter().any(|library| library.starts_with("libc.so")), "{found:?}");
        assert_eq!(own_allocator(&this), None);
        assert_eq!(own_allocator(Path::new("/etc/passwd")), None);
    }
}
