//! Links libgcc into the command. For `cargo install`, which installs programs only, embeds the libraries that
//! `cowslip run` preloads.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARIES: [(&str, &str); 2] =
    [("preload", "libcowslip_preload.so"), ("malloc", "libcowslip_malloc.so")];
/// The libraries' sources, in the workspace.
const SOURCES: [&str; 7] = [
    "Cargo.toml",
    "Cargo.lock",
    "crates/cowslip-build",
    "crates/cowslip-sys",
    "crates/cowslip",
    "crates/cowslip-preload",
    "crates/cowslip-malloc",
];

fn main() {
    cowslip_build::link_libgcc_statically();
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=COWSLIP_EMBED");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let embedded = if is_to_embed() { libraries(&workspace) } else { "None".to_owned() };
    let code = format!("const EMBEDDED: Option<Embedded> = {embedded};\n");
    fs::write(out_dir().join("embedded.rs"), code).expect("OUT_DIR can be written to");
}

/// `cargo install --path` sets this by `.cargo/config.toml` here. `cargo install --git` does not read that, and builds
/// in a folder that cargo keeps for checkouts.
fn is_to_embed() -> bool {
    let checkouts = Path::new("git/checkouts");
    let is_checkout = |path: &Path| path.ends_with(checkouts);
    env::var_os("COWSLIP_EMBED").is_some_and(|value| value == "1")
        || Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().any(is_checkout)
}

/// Builds the libraries, in a target directory of their own: cargo has locked the one of this build.
fn libraries(workspace: &Path) -> String {
    let target = env::var_os("TARGET").expect("cargo sets it");
    let folder = out_dir().join("libraries");
    let status = Command::new(env::var_os("CARGO").expect("cargo sets it"))
        .current_dir(workspace)
        .args(["build", "--release", "--locked", "-p", "cowslip-preload", "-p", "cowslip-malloc"])
        .args(["--config", "profile.release.debug=false", "--config", "profile.release.strip=true"])
        .args([OsStr::new("--target"), &target])
        .args([OsStr::new("--target-dir"), folder.as_os_str()])
        .env("CARGO_BUILD_BUILD_DIR", &folder)
        .env_remove("RUSTC_WORKSPACE_WRAPPER") // clippy's, which builds nothing
        .status()
        .expect("cargo can be run");
    assert!(status.success(), "the libraries for `cowslip run` could not be built: {status}");
    for source in SOURCES {
        println!("cargo:rerun-if-changed={}", workspace.join(source).display());
    }
    let mut hasher = DefaultHasher::new();
    let mut fields = String::new();
    for (field, file) in LIBRARIES {
        let path = folder.join(&target).join("release").join(file);
        fs::read(&path).expect("cargo built it").hash(&mut hasher);
        fields += &format!("{field}: include_bytes!({path:?}), ");
    }
    format!("Some(Embedded {{ {fields}hash: {} }})", hasher.finish())
}

fn out_dir() -> PathBuf {
    env::var_os("OUT_DIR").expect("a build script has a folder").into()
}
