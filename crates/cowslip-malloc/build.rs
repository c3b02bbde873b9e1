//! Binds two calls of jemalloc's to the functions of `src/forks.rs`, and the library's uses of its own functions to
//! these, whichever library stands first. Makes it depend on libc alone.

fn main() {
    for function in ["pthread_atfork", "pthread_setspecific"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    cowslip_build::link_libgcc_statically();
    println!("cargo:rerun-if-changed=build.rs");
}
