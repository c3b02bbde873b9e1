//! Sets the name under which programs record the shared library.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcowslip.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
