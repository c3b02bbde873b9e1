//! Binds two calls of jemalloc's to the functions of `src/forks.rs`.

fn main() {
    for function in ["pthread_atfork", "pthread_setspecific"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
