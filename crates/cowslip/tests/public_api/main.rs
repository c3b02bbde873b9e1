//! Compares the public API of the crate, one line for each item, with `public-api.txt`.
//!
//! Changes of it show up in review. `COWSLIP_BLESS=1 cargo test -p cowslip --test public_api` rewrites it.
//!
//! The list is made from the sources: the definitions and re-exports of the crate root and its public modules, from
//! this crate and `cowslip-sys`; fields, variants, inherent methods and constants, and the traits that types implement,
//! derived or written. Types in signatures are spelled as in the sources.

#![allow(unreachable_pub, reason = "the modules of a test")]

mod expand;
mod list;
mod sources;
mod text;

use std::path::{Path, PathBuf};

use sources::Sources;

fn crate_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn public_api() -> String {
    let mut sources = Sources::default();
    sources.add("cowslip", &crate_root().join("src/lib.rs"));
    sources.add("cowslip_sys", &crate_root().join("../cowslip-sys/src/lib.rs"));
    list::from_sources(&sources, "cowslip").join("\n") + "\n"
}

/// The lines that only one of them has, with the sign that `diff` uses.
fn difference(before: &str, after: &str) -> Vec<String> {
    let only = |these: &str, those: &str, sign: char| {
        let those: Vec<String> = those.lines().map(str::to_owned).collect();
        let only = these.lines().filter(|line| !those.iter().any(|other| other == line));
        only.map(|line| format!("{sign} {line}")).collect::<Vec<_>>()
    };
    [only(before, after, '-'), only(after, before, '+')].concat()
}

#[test]
fn the_public_api_is_as_written_down() {
    if !crate_root().is_dir() {
        return println!("SKIPPED: sources: the tests were brought here without them");
    }
    let path = crate_root().join("public-api.txt");
    let now = public_api();
    if std::env::var_os("COWSLIP_BLESS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == now,
        "the public API has changed; if that is meant, renew {} with COWSLIP_BLESS=1:\n{}",
        path.display(),
        difference(&written, &now).join("\n")
    );
}

fn list_of(files: &[(&str, &str)]) -> Vec<String> {
    let directory = std::env::temp_dir().join(format!(
        "cowslip-api-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    for (name, text) in files {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let mut sources = Sources::default();
    let root = |name: &str| directory.join(name).join("lib.rs");
    let crates = ["one", "two"].into_iter().filter(|name| Path::exists(&root(name)));
    crates.for_each(|name| sources.add(name, &root(name)));
    let list = list::from_sources(&sources, "one");
    std::fs::remove_dir_all(directory).unwrap();
    list
}

#[test]
fn what_can_be_named_from_outside_is_listed_and_nothing_else() {
    let list = list_of(&[
        (
            "one/lib.rs",
            "mod hidden; mod shown_too; pub use shown_too::B as C; pub fn shown_too() {} pub mod shown { pub const A: u32 = 1; const B: u32 = 2; pub(crate) fn c() {} }
             pub use hidden::{Thing, deep::make as create}; pub use two::units; pub use std::io::Error;
             #[cfg(test)] pub mod tests { pub fn never() {} }
             #[cfg(feature = \"internal\")] pub use hidden::not_listed;
             #[cfg(feature = \"internal\")] pub mod raw { pub fn never() {} }
             #[cfg(not(feature = \"internal\"))] mod raw { pub fn never() {} }",
        ),
        (
            "one/hidden.rs",
            "pub mod deep; pub fn not_listed() {}
             #[derive(Clone, Debug)] #[non_exhaustive] pub struct Thing<T: Copy> { pub a: T, b: u8 }
             impl<T: Copy> Thing<T> { pub fn get(&self) -> &T { &self.a } fn own(self) {}
                 pub const ZERO: u8 = 0; }
             impl<T: Copy> std::ops::Deref for Thing<T> { type Target = T; fn deref(&self) -> &T { &self.a } }
             #[cfg(feature = \"internal\")] impl<T: Copy> Thing<T> { pub fn raw(&self) {} }
             trait Private {} impl<T: Copy> Private for Thing<T> {}",
        ),
        ("one/shown_too.rs", "pub static B: u8 = 1;"),
        ("one/hidden/deep.rs", "/// Safe no more.\npub unsafe fn make(a: [u8; 4]) -> Result<(), String> { todo!() }"),
        ("two/lib.rs", "pub mod units; pub mod other { pub struct Absent; }"),
        ("two/units.rs", "pub struct Bytes(pub u64, u8); pub enum Unit { One, Two(u8), Three { a: u8 } }"),
    ]);
    let expected = "impl Clone for one::Thing
impl Debug for one::Thing
impl<T: Copy> std::ops::Deref for one::Thing<T>, Target = T
pub const one::Thing::ZERO: u8
pub const one::shown::A: u32
pub enum one::units::Unit
pub field one::Thing::a: T
pub field one::units::Bytes::0: u64
pub fn one::Thing::get(&self) -> &T
pub fn one::shown_too()
pub mod one
pub mod one::shown
pub mod one::units
pub static one::C: u8
pub struct one::Thing<T: Copy> (non-exhaustive)
pub struct one::units::Bytes
pub unsafe fn one::create(a: [u8; 4]) -> Result<(), String>
pub use std::io::Error as one::Error
pub variant one::units::Unit::One
pub variant one::units::Unit::Three { a: u8 }
pub variant one::units::Unit::Two(u8)";
    let mut sorted = list.clone();
    sorted.sort();
    assert_eq!(sorted.join("\n"), expected);
}

#[test]
fn what_macros_make_is_listed() {
    let list = list_of(&[(
        "one/lib.rs",
        "macro_rules! numbers { ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
             pub struct Numbers { $($(#[$doc])* pub $name: u64),* }
             impl Numbers { pub fn all(&self) -> Vec<u64> { vec![$(self.$name),*] } }
         }; }
         numbers! { /// The first.\n first, second, }
         bitflags! { #[derive(Clone)] pub struct Flags: u32 { const A = 1; const B = 2; } }",
    )]);
    let expected = [
        "pub mod one",
        "pub struct one::Flags (bits: u32)",
        "impl Clone for one::Flags",
        "pub const one::Flags::A: Self",
        "pub const one::Flags::B: Self",
        "pub struct one::Numbers",
        "pub field one::Numbers::first: u64",
        "pub field one::Numbers::second: u64",
        "pub fn one::Numbers::all(&self) -> Vec<u64>",
    ];
    assert_eq!(list, expected);
}

#[test]
fn a_difference_names_the_lines() {
    assert_eq!(difference("a\nb\n", "b\nc\n"), ["- a", "+ c"]);
    assert!(difference("a\n", "a\n").is_empty());
}
