//! Needs a library less to start.

fn main() {
    cowslip_build::link_libgcc_statically();
    println!("cargo:rerun-if-changed=build.rs");
}
