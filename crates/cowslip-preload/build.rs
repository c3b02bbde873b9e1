//! Makes the library depend on libc alone.

fn main() {
    // Its uses of its own functions are these, whichever library stands first.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    cowslip_build::link_libgcc_statically();
    println!("cargo:rerun-if-changed=build.rs");
}
