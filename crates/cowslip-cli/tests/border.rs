//! A child with fewer rights has no access to its parent's later writes.

mod support;

use std::process::Command;

use support::{Folder, compile, run, under_cowslip};

const WAYS: [&str; 11] = [
    "users",
    "users by number",
    "file user by number",
    "effective user",
    "capabilities",
    "no new privileges",
    "filter",
    "no new privileges, then a filter",
    "user namespace",
    "process namespace",
    "user namespace of a clone",
];

/// States of the parent.
const SPECIAL: [&str; 5] =
    ["a part left", "all left", "no descriptors", "a refused mapping", "another root"];

#[test]
fn a_child_with_fewer_rights_sees_nothing_of_its_parents_future() {
    let folder = Folder::new("border");
    let Some(program) = compile(&folder, "border") else { return };
    let ways = WAYS.map(|way| (way, ""));
    for (way, special) in ways.into_iter().chain(SPECIAL.map(|case| ("no new privileges", case))) {
        let native = run(Command::new(&program).args([way, special]));
        if !native.status.success() {
            println!("SKIPPED: border, {way}: not to be had here: {}", native.stdout);
            continue;
        }
        // Without it there is no thaw, and a wait for one is long.
        let without = (way == WAYS[0]).then_some(&["--without-userfaultfd"][..]);
        for options in [Some(&[][..]), without].into_iter().flatten() {
            let command = [program.as_os_str(), way.as_ref(), special.as_ref()];
            let (ran, report) = under_cowslip(options, &command);
            let wanted = (native.status, native.stdout.clone());
            assert_eq!((ran.status, ran.stdout), wanted, "{way}, {special}");
            let freezes = report.unwrap()["freezes"].as_u64().unwrap();
            assert_eq!(freezes > 0, special != "all left", "{way}, {special}");
        }
    }
}
