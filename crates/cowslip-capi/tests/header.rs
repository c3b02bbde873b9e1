//! The header is up to date with the sources.

use std::path::Path;

/// `COWSLIP_BLESS=1` writes it anew.
#[test]
fn the_header_is_as_generated() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    let text = String::from_utf8(text).unwrap();
    let file = root.join("include/cowslip.h");
    if std::env::var_os("COWSLIP_BLESS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let vendored = std::fs::read_to_string(&file).unwrap();
    assert!(
        vendored == text,
        "{} is not what the sources make; COWSLIP_BLESS=1 cargo test -p cowslip-capi writes it",
        file.display()
    );
}
