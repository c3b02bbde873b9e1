//! Has the library need no other than libc's.

fn main() {
    cowslip_build::link_libgcc_statically();
    println!("cargo:rerun-if-changed=build.rs");
}
