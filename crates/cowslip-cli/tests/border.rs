//! A child with fewer rights has no way to what its parent writes later.

mod support;

use std::process::Command;

use support::{Folder, compile, run, under_cowslip};

const WAYS: [&str; 7] = [
    "users",
    "users by number",
    "effective user",
    "capabilities",
    "no new privileges",
    "filter",
    "user namespace",
];

#[test]
fn a_child_with_fewer_rights_sees_nothing_of_its_parents_future() {
    let folder = Folder::new("border");
    let Some(program) = compile(&folder, "border") else { return };
    for way in WAYS {
        let native = run(Command::new(&program).arg(way));
        if !native.status.success() {
            println!("SKIPPED: border, {way}: not to be had here: {}", native.stdout);
            continue;
        }
        // Without it there is no thaw, and a wait for one is long.
        let without = (way == WAYS[0]).then_some(&["--without-userfaultfd"][..]);
        for options in [Some(&[][..]), without].into_iter().flatten() {
            let (ran, report) = under_cowslip(options, &[program.as_os_str(), way.as_ref()]);
            assert_eq!((ran.status, ran.stdout), (native.status, native.stdout.clone()), "{way}");
            assert_eq!(report.unwrap()["freezes"], 1, "{way}");
        }
    }
}
