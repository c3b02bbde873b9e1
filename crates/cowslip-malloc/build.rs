//! Binds two calls of jemalloc's to the functions of `src/forks.rs`, and makes the library depend on libc alone.

fn main() {
    for function in ["pthread_atfork", "pthread_setspecific"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
    }
    cowslip_build::link_libgcc_statically();
    println!("cargo:rerun-if-changed=build.rs");
}
