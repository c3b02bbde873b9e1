//! Files that a killed writer left behind, and replaced files.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

use cowslip_sys::atomic_file::{DurableFile, replace};

/// A number higher than any process has.
const NOBODY: i32 = i32::MAX;
const SOMEBODY: i32 = 1;

#[test]
fn a_file_that_a_killed_process_left_is_removed_by_the_next_and_no_other() {
    let folder = std::env::temp_dir().join(format!("cowslip-durable-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let left = |name: String| File::create(folder.join(name)).unwrap();
    left(format!(".image.{NOBODY}"));
    let stay = [
        format!(".image.{SOMEBODY}"),
        format!(".image.{}", NOBODY - 1),
        ".image.old".to_owned(),
        format!(".image2.{NOBODY}"),
        format!("image.{NOBODY}"),
    ];
    let files = stay.each_ref().map(|name| left(name.clone()));
    // Its writer locks it, too; the writer's number means nothing here if it runs in another
    // container.
    files[1].try_lock().unwrap();

    let target = folder.join("image");
    let durable = DurableFile::create(&target).unwrap();
    durable.write_at(b"content", 0).unwrap();
    durable.commit().unwrap();
    let names = || {
        let entries = fs::read_dir(&folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let mut expected = [&stay[..], &["image".to_owned()]].concat();
    expected.sort();
    assert_eq!(names(), expected);
    assert_eq!(fs::read(&target).unwrap(), b"content");

    drop(files);
    drop(DurableFile::create(&target).unwrap());
    expected.retain(|name| *name != stay[1]);
    assert_eq!(names(), expected, "its writer is gone as well");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_file_is_replaced_whole_with_its_mode_and_nothing_is_left_beside_it() {
    let folder = std::env::temp_dir().join(format!("cowslip-replace-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let target = folder.join("state");
    fs::write(&target, "a longer old one").unwrap();
    replace(&target, b"new", 0o600).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"new");
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    assert!(replace(&folder.join("none/state"), b"new", 0o600).is_err());
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_is_no_regular_file_is_written_to_or_refused_and_stays_what_it_is() {
    let folder = std::env::temp_dir().join(format!("cowslip-special-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let [fifo, link, lost] = ["fifo", "link", "lost"].map(|name| folder.join(name));
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    symlink(&fifo, &link).unwrap();
    symlink(folder.join("nothing"), &lost).unwrap();
    for path in [&fifo, &link, &folder, &lost] {
        let error = DurableFile::create(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}: {error}", path.display());
    }
    for path in [&fifo, &link] {
        let reader = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::read(fifo).unwrap()
        });
        replace(path, b"content", 0o600).unwrap();
        assert_eq!(reader.join().unwrap(), b"content");
        assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    }
    let late = DurableFile::create(&folder.join("late")).unwrap();
    fs::rename(&fifo, folder.join("late")).unwrap();
    assert_eq!(late.commit().unwrap_err().kind(), ErrorKind::InvalidInput);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_link_goes_on_to_lead_to_the_file_that_is_replaced() {
    let folder = std::env::temp_dir().join(format!("cowslip-link-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let [file, link] = ["file", "link"].map(|name| folder.join(name));
    fs::write(&file, "old").unwrap();
    symlink("file", &link).unwrap();
    replace(&link, b"new", 0o600).unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"new");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    fs::remove_dir_all(folder).unwrap();
}
