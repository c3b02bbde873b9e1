//! The folders that a systemd service may write to (`systemd.exec(5)`).

use std::path::{Path, PathBuf};

use super::machine::Machine;
use super::unit::Unit;

/// Settings that name folders below these, which systemd makes.
const MADE: [(&str, &str); 4] = [
    ("RuntimeDirectory", "/run"),
    ("StateDirectory", "/var/lib"),
    ("CacheDirectory", "/var/cache"),
    ("LogsDirectory", "/var/log"),
];

/// The folders that a service may write to and others see, on the running system or on the one below `root`. Returns
/// `None` if there is no such service, or `ProtectSystem=strict` does not limit it.
pub fn writable_folders(root: Option<PathBuf>, service: &str) -> Option<Vec<PathBuf>> {
    let unit = Unit::load(&Machine::new(root, true), service).ok()?;
    (unit.get("ProtectSystem") == Some("strict")).then(|| folders(&unit))
}

fn folders(unit: &Unit) -> Vec<PathBuf> {
    let words = |key| unit.list(key).into_iter().flat_map(str::split_whitespace);
    let made = MADE.iter().flat_map(|(key, parent)| {
        // The name may be followed by a link to the folder.
        let name = |word: &str| word.split(':').next().map(|name| Path::new(parent).join(name));
        words(key).filter_map(name)
    });
    let opened = words("ReadWritePaths")
        .map(|word| PathBuf::from(word.trim_matches(['"', '\'']).trim_start_matches(['-', '+'])));
    opened.chain(made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_unit_may_write_to_its_runtime_directory_only() {
        let unit = Unit::parse(include_str!("../../../packaging/cowslip-promote.service"));
        assert_eq!(unit.get("ProtectSystem"), Some("strict"));
        assert_eq!(folders(&unit), [Path::new("/run/cowslip")]);
    }

    #[test]
    fn what_a_drop_in_opens_is_writable() {
        let unit = Unit::parse(
            "[Service]\nReadWritePaths=/a\nReadWritePaths=\nReadWritePaths=-/var/lib/node_exporter +/b\n\
             RuntimeDirectory=one two:link\nStateDirectory=three\n",
        );
        let wanted = ["/var/lib/node_exporter", "/b", "/run/one", "/run/two", "/var/lib/three"];
        assert_eq!(folders(&unit), wanted.map(PathBuf::from));
    }

    #[test]
    fn a_service_is_found_below_a_root_and_one_without_limits_has_none() {
        let root = std::env::temp_dir().join(format!("cowslip-writable-{}", std::process::id()));
        let units = root.join("usr/lib/systemd/system");
        std::fs::create_dir_all(&units).unwrap();
        let write = |name: &str, text: &str| std::fs::write(units.join(name), text).unwrap();
        write("a.service", "[Service]\nProtectSystem=strict\nStateDirectory=a\n");
        write("b.service", "[Service]\nProtectSystem=full\n");
        let of = |name| writable_folders(Some(root.clone()), name);
        let found = (of("a.service"), of("b.service"), of("c.service"));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, (Some(vec!["/var/lib/a".into()]), None, None));
    }
}
