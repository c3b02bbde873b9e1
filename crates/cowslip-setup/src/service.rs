//! Runs a systemd service by `cowslip run`: with the drop-in that this takes, and nothing more.

use std::fs;
use std::path::{Path, PathBuf};

use super::access::{changeable, closed_to_others};
use super::group::GROUP;
use super::machine::{Content, Machine};
use super::report::Change::{Made, Needless};
use super::report::{Outcome, Trouble};
use super::unit::{Unit, own_drop_in};

/// The places where packages install the command.
const PROGRAMS: [&str; 2] = ["/usr/bin/cowslip", "/usr/local/bin/cowslip"];
/// A program that may open fewer files gets no arena.
const FEWEST_FILES: u64 = 64;
/// The calls that an arena needs, for filters that list the permitted ones.
const CALLS: &str = "memfd_create madvise mremap process_madvise pidfd_open userfaultfd";

/// The command and the libraries for services.
pub(crate) struct Installed {
    command: String,
    /// The folder of its libraries.
    libraries: String,
}

impl Installed {
    pub(crate) fn look(
        machine: &Machine,
        library: &Result<PathBuf, String>,
    ) -> Result<Self, Trouble> {
        if let Some(root) = machine.root() {
            let there = PROGRAMS.into_iter().find(|program| machine.exists(program));
            let command = there.ok_or_else(|| {
                let why = format!("cowslip is not installed below {}", root.display());
                Trouble::new(why, format!("install it as {}", PROGRAMS[0]))
            })?;
            if let Some(why) = changeable(&machine.path(command), root) {
                return Err(Trouble::new(why, "repair that, and run this again"));
            }
            let libraries = Path::new(command).with_file_name("").join("../lib/cowslip");
            let libraries = libraries.to_string_lossy().replace("bin/../", "");
            return Ok(Self { command: command.to_owned(), libraries });
        }
        let nowhere = |why: String| Trouble::new(why, "install the package, and run this again");
        let command = std::env::current_exe()
            .map_err(|error| nowhere(format!("where cowslip is: {error}")))?;
        let library = library.clone().map_err(nowhere)?;
        let library = fs::canonicalize(&library).unwrap_or(library);
        let malloc = library.with_file_name("libcowslip_malloc.so");
        for file in [&command, &library, &malloc] {
            if let Some(closed) = closed_to_others(file) {
                let why = format!(
                    "services cannot use {}: {} is closed to others",
                    file.display(),
                    closed.display()
                );
                return Err(nowhere(why));
            }
            if let Some(why) = changeable(file, Path::new("/")) {
                return Err(nowhere(why));
            }
        }
        let is_awkward =
            |character: char| character.is_whitespace() || "%\"'\\$;".contains(character);
        if command.to_string_lossy().contains(is_awkward) {
            return Err(nowhere(format!("a unit file cannot name {}", command.display())));
        }
        let folder = library.parent().unwrap_or(Path::new("/"));
        Ok(Self { command: command.display().to_string(), libraries: folder.display().to_string() })
    }
}

/// The drop-in that puts a service under Cowslip.
pub(crate) struct DropIn {
    /// The service's own name, even if it was requested by an alias.
    service: String,
    file: String,
    text: String,
}

impl DropIn {
    /// Changes nothing. Refuses what [`Self::write`] would refuse.
    pub(crate) fn new(
        machine: &Machine,
        installed: &Installed,
        name: &str,
    ) -> Result<Self, Trouble> {
        let unit = Unit::load(machine, name)?;
        let file = own_drop_in(&unit.name);
        machine.check_ours(&file)?;
        Ok(Self { file, text: drop_in(&unit, installed)?, service: unit.name })
    }

    pub(crate) fn service(&self) -> &str {
        &self.service
    }

    pub(crate) fn write(&self, machine: &Machine) -> Outcome {
        let Self { service, file, text } = self;
        Ok(match machine.write(file, text)? {
            true => Made(format!("{file}; it takes effect with `systemctl restart {service}`")),
            false => Needless(format!("{file} is there")),
        })
    }
}

/// Removes the drop-in of a service.
pub(crate) fn undo(machine: &Machine, name: &str) -> Outcome {
    // The unit may be gone by now, or have been named by an alias.
    let name = Unit::load(machine, name).map_or_else(|_| name.to_owned(), |unit| unit.name);
    let file = own_drop_in(&name);
    if let Content::Foreign(_) = machine.content(&file)? {
        return Ok(Needless(format!("{file} stays: setup did not write it")));
    }
    Ok(match machine.remove(&file)? {
        true => Made(format!("{file} is removed; it takes effect with `systemctl restart {name}`")),
        false => Needless(format!("setup wrote no {file}")),
    })
}

fn drop_in(unit: &Unit, installed: &Installed) -> Result<String, Trouble> {
    refuse(unit, installed)?;
    let mut lines = vec!["[Service]".to_owned()];
    let commands = unit.list("ExecStart");
    if commands.is_empty() {
        return Err(Trouble::new(
            format!("{} starts no program", unit.name),
            "name the service that does",
        ));
    }
    lines.push("ExecStart=".into());
    for command in commands {
        lines.push(format!("ExecStart={}", wrapped(unit, command, &installed.command)?));
    }
    lines.push(format!("# For {}.\nSupplementaryGroups={GROUP}", "/dev/userfaultfd"));
    let is_closed = matches!(unit.get("DevicePolicy"), Some("closed" | "strict"));
    let hides_devices = unit.is_yes("PrivateDevices");
    if hides_devices {
        lines.push("# PrivateDevices= hides it.\nBindPaths=/dev/userfaultfd".into());
    }
    if hides_devices || is_closed || !unit.list("DeviceAllow").is_empty() {
        lines.push("# PrivateDevices=, DevicePolicy= or DeviceAllow= keeps it closed.".into());
        lines.push("DeviceAllow=/dev/userfaultfd rw".into());
    }
    if !unit.list("NoExecPaths").is_empty() {
        lines.push("# NoExecPaths= forbids to execute them. A dash: they may be gone.".into());
        lines.push(format!("ExecPaths=-{} -{}", installed.command, installed.libraries));
    }
    if let Some(first) = unit.list("SystemCallFilter").first() {
        if unit.get("SystemCallErrorNumber").is_none() {
            lines.push(
                "# Cowslip tries calls that it can do without; SystemCallFilter= kills who does."
                    .into(),
            );
            lines.push("SystemCallErrorNumber=EPERM".into());
        }
        if !first.starts_with('~')
            && !unit.list("SystemCallFilter").iter().any(|calls| calls.contains("@system-service"))
        {
            lines.push(format!(
                "# SystemCallFilter= lists what is allowed.\nSystemCallFilter={CALLS}"
            ));
        }
    }
    Ok(lines.join("\n") + "\n")
}

/// Refuses services that no drop-in can help.
fn refuse(unit: &Unit, installed: &Installed) -> Result<(), Trouble> {
    let install = "install it below /usr, and run this again";
    for root in ["RootDirectory", "RootImage"] {
        if let Some(root_of_it) = unit.get(root).filter(|path| *path != "/") {
            let why = format!("{} has a file system of its own, {root}={root_of_it}", unit.name);
            return Err(Trouble::new(why, "install Cowslip there, and set ExecStart= by hand"));
        }
    }
    let is_below = |folders: &[&'static str]| {
        folders.iter().find(|folder| installed.command.starts_with(**folder)).copied()
    };
    let hidden = match unit.get("ProtectHome") {
        Some(no) if ["no", "false", "off", "0", "read-only"].contains(&no) => None,
        Some(_) => {
            is_below(&["/home/", "/root/", "/run/user/"]).map(|folder| ("ProtectHome", folder))
        }
        None => None,
    };
    let tmp = unit.is_yes("PrivateTmp").then(|| is_below(&["/tmp/", "/var/tmp/"])).flatten();
    if let Some((setting, folder)) = hidden.or_else(|| tmp.map(|folder| ("PrivateTmp", folder))) {
        let why =
            format!("{setting}= of {} hides {folder}, where {} is", unit.name, installed.command);
        return Err(Trouble::new(why, install));
    }
    for limit in ["LimitAS", "LimitDATA", "LimitFSIZE", "LimitNOFILE"] {
        let Some(value) = unit.get(limit).filter(|value| *value != "infinity") else { continue };
        let soft = value.split(':').next().and_then(|number| number.parse::<u64>().ok());
        if limit != "LimitNOFILE" || soft.is_some_and(|soft| soft < FEWEST_FILES) {
            let why = format!("under {limit}={value} of {} a program gets no arena", unit.name);
            return Err(Trouble::new(why, format!("raise it: systemctl edit {}", unit.name)));
        }
    }
    Ok(())
}

/// A unit's command line, run by `cowslip run`.
fn wrapped(unit: &Unit, line: &str, cowslip: &str) -> Result<String, Trouble> {
    let (prefixes, command) =
        line.split_at(line.find(|character| !"@-:+!|".contains(character)).unwrap_or(line.len()));
    let by_hand = |why: String| {
        Trouble::new(why, format!("set ExecStart= by hand: systemctl edit {}", unit.name))
    };
    if command.split_whitespace().any(|word| word == ";") {
        return Err(by_hand(format!(
            "ExecStart= of {} is several commands in one line",
            unit.name
        )));
    }
    if prefixes.contains('|') {
        return Err(by_hand(format!("ExecStart= of {} is for a shell", unit.name)));
    }
    let (program, arguments) = word(command);
    if Path::new(program.trim_matches(['"', '\'']))
        .file_name()
        .is_some_and(|name| name == "cowslip")
    {
        return Err(by_hand(format!("{} runs cowslip already: {line}", unit.name)));
    }
    let kept = prefixes.replace('@', "");
    if prefixes.contains('@') {
        let (name, arguments) = word(arguments);
        return Ok(format!("{kept}{cowslip} run --argv0 {name} -- {program} {arguments}")
            .trim_end()
            .to_owned());
    }
    Ok(format!("{kept}{cowslip} run -- {program} {arguments}").trim_end().to_owned())
}

/// The first word with its quotes, and the rest.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let (mut quote, mut is_escaped) = (None, false);
    let end = text.find(|character: char| {
        if is_escaped {
            is_escaped = false;
        } else if character == '\\' {
            is_escaped = true;
        } else if quote == Some(character) {
            quote = None;
        } else if quote.is_none() && (character == '"' || character == '\'') {
            quote = Some(character);
        } else {
            return quote.is_none() && character.is_whitespace();
        }
        false
    });
    let (word, rest) = text.split_at(end.unwrap_or(text.len()));
    (word, rest.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drop_in_for(service: &str) -> Result<String, Trouble> {
        let (command, libraries) = ("/usr/bin/cowslip".to_owned(), "/usr/lib/cowslip".to_owned());
        drop_in(&Unit::parse(&format!("[Service]\n{service}")), &Installed { command, libraries })
    }

    #[test]
    fn a_command_line_keeps_its_prefixes_and_words() {
        for (line, wanted) in [
            ("/bin/a b  'c d'", "/usr/bin/cowslip run -- /bin/a b  'c d'"),
            ("-!/bin/a", "-!/usr/bin/cowslip run -- /bin/a"),
            ("@-/bin/a a-name %i", "-/usr/bin/cowslip run --argv0 a-name -- /bin/a %i"),
            ("@\"/bin/a b\" 'x y' $Z", "/usr/bin/cowslip run --argv0 'x y' -- \"/bin/a b\" $Z"),
        ] {
            let text = drop_in_for(&format!("ExecStart={line}")).unwrap();
            assert_eq!(text.lines().nth(2), Some(format!("ExecStart={wanted}").as_str()), "{text}");
        }
        for line in ["/bin/a ; /bin/b", "|echo", "/usr/bin/cowslip run -- a"] {
            assert!(drop_in_for(&format!("ExecStart={line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn nothing_is_opened_that_is_not_closed() {
        assert_eq!(
            drop_in_for("ExecStart=/bin/a").unwrap(),
            "[Service]\nExecStart=\nExecStart=/usr/bin/cowslip run -- /bin/a\n# For /dev/userfaultfd.\n\
             SupplementaryGroups=cowslip\n"
        );
        for (setting, wanted) in [
            ("PrivateDevices=yes", "BindPaths=/dev/userfaultfd"),
            ("PrivateDevices=yes", "DeviceAllow=/dev/userfaultfd rw"),
            ("DevicePolicy=closed", "DeviceAllow=/dev/userfaultfd rw"),
            ("NoExecPaths=/", "ExecPaths=-/usr/bin/cowslip -/usr/lib/cowslip"),
            ("SystemCallFilter=~@mount", "SystemCallErrorNumber=EPERM"),
            ("SystemCallFilter=@basic-io", CALLS),
        ] {
            let text = drop_in_for(&format!("ExecStart=/bin/a\n{setting}")).unwrap();
            assert!(text.contains(wanted), "{setting}: {text}");
        }
        let settings = "SystemCallErrorNumber=EACCES\nSystemCallFilter=@system-service";
        let text = drop_in_for(&format!("ExecStart=/bin/a\n{settings}")).unwrap();
        assert!(!text.contains("SystemCall"), "{text}");
    }

    #[test]
    fn what_no_drop_in_repairs_is_refused_with_advice() {
        for setting in ["RootDirectory=/srv/a", "LimitAS=1G", "LimitNOFILE=60", "ExecStart="] {
            let trouble = drop_in_for(&format!("ExecStart=/bin/a\n{setting}")).unwrap_err();
            assert!(!trouble.why.is_empty() && !trouble.fix.is_empty(), "{setting}");
        }
        assert!(drop_in_for("ExecStart=/bin/a\nLimitNOFILE=65535").is_ok());
    }
}
