//! The name that programs remember the shared library by.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcowslip.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
