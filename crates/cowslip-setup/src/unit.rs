//! A systemd service as its unit files describe it (`systemd.unit(5)`, `systemd.syntax(7)`), without setup's drop-in.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::machine::{Machine, of_file};
use super::report::Trouble;

/// The folders of units; the first unit of a name counts.
const FOLDERS: [&str; 6] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// Units that systemd makes of init scripts.
const FROM_INIT_SCRIPTS: &str = "/run/systemd/generator.late";

/// The settings of the section `[Service]`, in their order.
pub(crate) struct Unit {
    /// The unit's own name, even if it was requested by an alias.
    pub(crate) name: String,
    settings: Vec<(String, String)>,
}

impl Unit {
    pub(crate) fn load(machine: &Machine, name: &str) -> Result<Self, Trouble> {
        let file = main_file(machine, name)?;
        let path = fs::canonicalize(machine.path(&file)).unwrap_or_else(|_| machine.path(&file));
        let real =
            path.file_name().map_or_else(|| name.into(), |file_name| file_name.to_string_lossy());
        let name =
            if real.ends_with(".service") && !real.contains('@') { real.as_ref() } else { name };
        if path == Path::new("/dev/null")
            || fs::metadata(&path).is_ok_and(|metadata| metadata.len() == 0)
        {
            let fix = format!("systemctl unmask {name}");
            return Err(Trouble::new(format!("{name} is masked by {}", file.display()), fix));
        }
        let mut settings = parse(&read(&path)?);
        for file in drop_ins(machine, name) {
            settings.extend(parse(&read(&file)?));
        }
        Ok(Self { name: name.to_owned(), settings })
    }

    /// The last value of a setting.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let last = self.settings.iter().rfind(|(name, _)| name == key);
        last.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// All values of a setting that takes several; an empty one resets it.
    pub(crate) fn list(&self, key: &str) -> Vec<&str> {
        let mut values = Vec::new();
        for (_, value) in self.settings.iter().filter(|(name, _)| name == key) {
            match value.as_str() {
                "" => values.clear(),
                value => values.push(value),
            }
        }
        values
    }

    pub(crate) fn is_yes(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| {
            ["yes", "true", "on", "1"].contains(&value.to_ascii_lowercase().as_str())
        })
    }

    #[cfg(test)]
    pub(crate) fn parse(text: &str) -> Self {
        Self { name: "a.service".into(), settings: parse(text) }
    }
}

/// The path of setup's own drop-in for a service.
pub(crate) fn own_drop_in(name: &str) -> String {
    format!("{}/{name}.d/cowslip.conf", FOLDERS[0])
}

/// The services for which setup wrote a drop-in, or might have.
pub(crate) fn with_drop_in(machine: &Machine) -> Vec<String> {
    let folders = fs::read_dir(machine.path(FOLDERS[0])).into_iter().flatten().flatten();
    let names = folders
        .filter_map(|folder| folder.file_name().to_str()?.strip_suffix(".d").map(str::to_owned));
    let mut names: Vec<String> = names.filter(|name| machine.exists(own_drop_in(name))).collect();
    names.sort();
    names
}

/// The names of all services that have a file.
pub(crate) fn services(machine: &Machine) -> Vec<String> {
    let folders = FOLDERS.into_iter().chain([FROM_INIT_SCRIPTS]);
    let files = folders.flat_map(|folder| fs::read_dir(machine.path(folder)).into_iter().flatten());
    let names = files.flatten().filter_map(|file| file.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".service")).collect();
    names.sort();
    names.dedup();
    names
}

/// Returns true if the service has a file, a masked one or an init script's too.
pub(crate) fn exists(machine: &Machine, name: &str) -> bool {
    let is_there = |name: &str| services(machine).iter().any(|service| service == name);
    is_there(name) || template(name).is_some_and(|name| is_there(&name))
}

fn main_file(machine: &Machine, name: &str) -> Result<PathBuf, Trouble> {
    for name in [Some(name.to_owned()), template(name)].into_iter().flatten() {
        let files = FOLDERS.iter().map(|folder| Path::new(folder).join(&name));
        // This includes a symbolic link to nothing: it masks later units.
        if let Some(file) =
            files.into_iter().find(|file| machine.path(file).symlink_metadata().is_ok())
        {
            return Ok(file);
        }
    }
    let generated = Path::new(FROM_INIT_SCRIPTS).join(name);
    if machine.exists(&generated) {
        let why = format!("{name} is an init script's, without a unit of its own");
        return Err(Trouble::new(
            why,
            "write a unit for it, or put `cowslip run --` into the script",
        ));
    }
    Err(Trouble::new(format!("there is no {name}"), "systemctl list-unit-files --type=service"))
}

fn template(name: &str) -> Option<String> {
    let (stem, _) = name.split_once('@')?;
    Some(format!("{stem}@.service"))
}

/// The drop-ins by name; of one name the most specific one, and then the first.
fn drop_ins(machine: &Machine, name: &str) -> Vec<PathBuf> {
    let mut of: Vec<String> =
        [Some(name.to_owned()), template(name)].into_iter().flatten().collect();
    let stem = name.trim_end_matches(".service");
    let prefixes = stem.rmatch_indices('-').map(|(at, _)| format!("{}.service", &stem[..=at]));
    of.extend(prefixes);
    of.push("service".into());
    let mut files = BTreeMap::new();
    for folder in of.iter().flat_map(|name| FOLDERS.map(|folder| format!("{folder}/{name}.d"))) {
        for file in fs::read_dir(machine.path(folder)).into_iter().flatten().flatten() {
            if file.path().extension().is_some_and(|extension| extension == "conf") {
                files.entry(file.file_name()).or_insert_with(|| file.path());
            }
        }
    }
    let own = machine.path(own_drop_in(name));
    files.into_values().filter(|file| *file != own).collect()
}

fn read(path: &Path) -> Result<String, Trouble> {
    let bytes = fs::read(path).map_err(|error| of_file("read", path, &error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parse(text: &str) -> Vec<(String, String)> {
    let (mut settings, mut section, mut open) = (Vec::new(), String::new(), String::new());
    for line in text.lines() {
        // A comment may stand between the lines of one setting.
        if line.trim_start().starts_with(['#', ';']) {
            continue;
        }
        open.push_str(line);
        if let Some(begun) = open.strip_suffix('\\') {
            open = format!("{begun} ");
            continue;
        }
        let line = std::mem::take(&mut open);
        let line = line.trim();
        if line.starts_with('[') {
            section = line.to_owned();
        } else if let Some((key, value)) = line.split_once('=').filter(|_| section == "[Service]") {
            settings.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_systemd_reads_them() {
        let unit = Unit::parse(
            "[Unit]\nExecStart=no\n[Service]\nExecStart=/bin/a \\\n# between\n  b\nPrivateDevices=true\n\
             SystemCallFilter=@one\nSystemCallFilter=\nSystemCallFilter=~@two\n Type = notify \nPrivateDevices=\n\
             [Install]\nType=no\n",
        );
        assert_eq!(unit.get("ExecStart"), Some("/bin/a    b"));
        assert_eq!(unit.list("SystemCallFilter"), ["~@two"]);
        assert_eq!(unit.get("Type"), Some("notify"));
        assert!(!unit.is_yes("PrivateDevices"));
    }
}
