//! docs/formats.md names each format of the sources, where it is defined and tested, and no two
//! begin alike.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        match entry.file_type().unwrap().is_dir() {
            true => rust_files(&path, found),
            false if path.extension().is_some_and(|extension| extension == "rs") => {
                found.push(path)
            }
            false => {}
        }
    }
}

/// All Rust files below a folder of the workspace's root, with their texts.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    rust_files(&Path::new(ROOT).join(folder), &mut files);
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The parts of `text` between `begin` and `end`.
fn between<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).filter_map(move |rest| rest.split_once(end)).map(|(part, _)| part)
}

fn is_name(name: &str) -> bool {
    name.len() == 8 && name.starts_with("COWSLIP")
}

fn is_schema(schema: &str) -> bool {
    let fit = |byte: u8| byte.is_ascii_lowercase() || byte == b'.' || byte == b'-';
    schema.rsplit_once('/').is_some_and(|(name, version)| {
        name.starts_with("cowslip.") && name.bytes().all(fit) && version.parse::<u32>().is_ok()
    })
}

/// A row of a table: its name in backquotes, and all of it.
fn rows(page: &str) -> Vec<(&str, &str)> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    rows.flat_map(|row| {
        let marked = row.split('`').skip(1).step_by(2);
        marked.filter(|word| is_name(word) || is_schema(word)).map(move |word| (word, row))
    })
    .collect()
}

#[test]
fn each_format_is_listed_with_its_place_and_its_test() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/formats.md")).unwrap();
    let rows = rows(&page);
    let listed: BTreeMap<_, _> = rows.iter().copied().collect();
    assert_eq!(listed.len(), rows.len(), "two formats begin alike");
    let all = [sources("crates"), sources("tools/bench/src")].concat();
    for (name, row) in &listed {
        let place = row.split("](../").nth(1).and_then(|rest| rest.split_once(')'));
        let place = Path::new(ROOT).join(place.unwrap_or_else(|| panic!("{name}: no place")).0);
        let text = fs::read_to_string(&place).unwrap();
        assert!(text.contains(name), "{name} is not in {}", place.display());
    }
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim_matches([' ', '`'])).collect();
        let ["", _, _, _, _, test, target, ""] = cells.as_slice() else { continue };
        if *test == "test" || test.starts_with('-') {
            continue;
        }
        let test = format!("fn {test}(");
        assert!(all.iter().any(|(_, text)| text.contains(&test)), "{test}: {line}");
        let file = Path::new(ROOT).join(format!("fuzz/fuzz_targets/{target}.rs"));
        assert!(target.is_empty() || file.exists(), "{target}");
    }
    let of_sources = all.iter().filter(|(path, _)| path.iter().any(|part| part == "src"));
    let (mut names, mut schemas) = (BTreeSet::new(), BTreeSet::new());
    for (_, text) in of_sources {
        names.extend(between(text, "*b\"", "\"").filter(|name| is_name(name)));
        // Tests of other versions are below.
        let code = text.split("mod tests {").next().unwrap();
        let strings = code.split('"').map(|text| text.trim_end_matches('\\'));
        schemas.extend(strings.filter(|text| is_schema(text)));
    }
    for name in names.into_iter().chain(schemas) {
        assert!(listed.contains_key(name), "docs/formats.md lacks {name}");
    }
}

/// A reader that gets another format says so, as no two begin alike; `COWSLIP1` was the counters'
/// page.
#[test]
fn each_magic_belongs_to_one_format() {
    let mut places: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, text) in sources("crates") {
        if !path.iter().any(|part| part == "src") {
            continue;
        }
        // A constant called `MAGIC`, not that of another format to compare with.
        for name in between(&text, " MAGIC: [u8; 8] = *b\"", "\"").filter(|name| is_name(name)) {
            places.entry(name.to_owned()).or_default().insert(path.clone());
        }
    }
    assert!(places.len() >= 5 && !places.contains_key("COWSLIP1"), "{places:?}");
    for (name, files) in places {
        assert_eq!(files.len(), 1, "{name}: {files:?}");
    }
}
