//! A file that is replaced where the file system has no files without a name.

use std::fs;
use std::os::unix::fs::symlink;

use cowslip_sys::Errno;
use cowslip_sys::atomic_file::replace;
use cowslip_sys::failpoints::{Op, fail};

#[test]
fn a_first_name_that_was_foreseen_is_not_followed() {
    let folder = std::env::temp_dir().join(format!("cowslip-foreseen-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let (target, victim) = (folder.join("state"), folder.join("victim"));
    fs::write(&victim, "a victim's file").unwrap();
    symlink(&victim, folder.join(format!(".state.{}", std::process::id()))).unwrap();
    let nameless = fail(Op::DurableNameless, 0, 1, Errno::OPNOTSUPP);
    replace(&target, b"new", 0o600).unwrap();
    assert!(nameless.is_spent());
    assert_eq!(fs::read(&victim).unwrap(), b"a victim's file");
    assert_eq!(fs::read(&target).unwrap(), b"new");
    assert!(fs::symlink_metadata(&target).unwrap().is_file());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "its first name is gone");
    fs::remove_dir_all(&folder).unwrap();
}
