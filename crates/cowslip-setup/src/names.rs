//! Names of services and users that neither exist nor were set up, found before anything is changed.

use std::cmp::Reverse;

use super::Plan;
use super::machine::Machine;
use super::{group, unit};

/// Two names are near from this likeness on, as for the options of the command line.
const NEAR: f64 = 0.7;
const MOST_OFFERS: usize = 3;

/// A sentence for each name of the plan that does not exist. A service or a user that is gone can still be undone.
pub(crate) fn unknown(machine: &Machine, plan: &Plan) -> Vec<String> {
    let (set_up, joined) = match plan.undo {
        true => (unit::with_drop_in(machine), group::joined(machine).unwrap_or_default()),
        false => Default::default(),
    };
    let mut sentences = Vec::new();
    let is_service = |name: &String| set_up.contains(name) || unit::exists(machine, name);
    for name in plan.services.iter().filter(|name| !is_service(name)) {
        let services = unit::services(machine);
        let bare = |name: &String| name.trim_end_matches(".service").to_owned();
        let near = near(&bare(name), services.iter().map(bare));
        let list = "systemctl list-unit-files --type=service";
        sentences.push(format!("there is no {name}{}", offer(&near, list)));
    }
    let accounts = machine.read("/etc/passwd").ok().flatten().unwrap_or_default();
    let users = || accounts.lines().filter_map(|line| line.split(':').next()).map(str::to_owned);
    let is_user = |name: &String| joined.contains(name) || users().any(|user| user == *name);
    for name in plan.users.iter().filter(|name| !is_user(name)) {
        let near = near(name, users());
        let list = "cut -d: -f1 /etc/passwd";
        sentences.push(format!("there is no user {name} in /etc/passwd{}", offer(&near, list)));
    }
    sentences
}

fn offer(near: &[String], list: &str) -> String {
    match near.is_empty() {
        true => format!("; `{list}` lists them"),
        false => format!(": {}?", near.join(", ")),
    }
}

/// The most similar names, the nearest first.
fn near(wanted: &str, names: impl Iterator<Item = String>) -> Vec<String> {
    let likeness = |name: &str| match name.contains(wanted) || wanted.contains(name) {
        true => 1.0,
        false => strsim::jaro(name, wanted),
    };
    // Thousandths can be sorted. A template's own name names no service.
    let mut near: Vec<(Reverse<u64>, String)> = names
        .filter(|name| !name.is_empty() && !name.ends_with('@') && likeness(name) > NEAR)
        .map(|name| (Reverse((strsim::jaro(&name, wanted) * 1e3) as u64), name))
        .collect();
    near.sort();
    near.into_iter().take(MOST_OFFERS).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_those_of_a_slip_or_a_part() {
        let names = ["cron", "redis-server", "redis-server@", "ssh", "systemd-udevd"];
        let offered = |wanted| near(wanted, names.map(str::to_owned).into_iter());
        assert_eq!(offered("redis"), ["redis-server"]);
        assert_eq!(offered("reddis-server"), ["redis-server"]);
        assert_eq!(offered("sshd"), ["ssh"]);
        assert_eq!(offered("postgresql"), [""; 0]);
    }
}
