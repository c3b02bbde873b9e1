//! Makes the library depend on libc alone.

fn main() {
    cowslip_build::link_libgcc_statically();
    println!("cargo:rerun-if-changed=build.rs");
}
