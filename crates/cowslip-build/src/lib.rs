//! Code that Cowslip's build scripts share.

use std::path::PathBuf;

/// Links libgcc's unwinder into the build's output, as `gcc -static-libgcc` does: a program starts, and forks, with one
/// library less. Rust's standard library asks for the shared one by name, and the linker takes a text of that name for
/// it.
///
/// # Panics
/// Outside of a build script.
pub fn link_libgcc_statically() {
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("a build script has a folder"));
    std::fs::write(folder.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")
        .expect("a build script's folder can be written to");
    println!("cargo:rustc-link-search=native={}", folder.display());
}
