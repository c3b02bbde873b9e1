//! `cowslip image` on images that the library made, whole and damaged.

mod support;

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cowslip::Arena;
use cowslip::image::{Root, SaveOptions, save};
use cowslip::units::ByteCount;
use support::{COWSLIP, Folder, Ran, run};

fn image(command: &str, file: &Path) -> Ran {
    run(Command::new(COWSLIP).args(["image", command]).arg(file))
}

#[test]
fn an_image_is_described_and_verified_and_damage_has_an_exit_code() {
    let folder = Folder::new("image");
    let (first, second) = (folder.0.join("first"), folder.0.join("second"));
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let mut slice = arena.slice::<u64>(1 << 19).unwrap();
    slice.iter_mut().enumerate().for_each(|(i, value)| *value = i as u64 + 1);
    let frozen = arena.freeze().unwrap();
    let mut options = SaveOptions::default();
    options.user.insert("generation".into(), "17".into());
    let mut proceed = |_| ControlFlow::Continue(());
    let saved = save(&[&frozen], &first, &options, &mut proceed).unwrap();
    options.parent = Some(first.clone());
    save(&[&frozen], &second, &options, &mut proceed).unwrap();

    let info = image("info", &second);
    assert!(info.status.success(), "{}", info.stderr);
    assert!(info.stdout.contains("generation: 17"), "{}", info.stdout);
    assert!(info.stdout.contains(&saved.identity.to_string()), "its parent: {}", info.stdout);
    let json = run(Command::new(COWSLIP).args(["image", "info", "--json", "-"]).arg(&second));
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["image"]["chunks"], 0, "{json}");
    assert_eq!(json["ancestors"][0]["chunks"], 2, "{json}");

    let whole = image("verify", &second);
    assert!(whole.status.success() && whole.stdout.contains("whole"), "{}", whole.stderr);
    let file = std::fs::OpenOptions::new().write(true).open(&first).unwrap();
    file.write_all_at(&[0xff], (2 << 20) + 1_000_003).unwrap();
    let damaged = image("verify", &second);
    assert_eq!(damaged.status.code(), Some(6), "{}", damaged.stderr);
    assert!(damaged.stderr.contains(first.to_str().unwrap()), "{}", damaged.stderr);
    assert_eq!(image("info", Path::new("/etc/passwd")).status.code(), Some(6));
    assert_eq!(image("info", Path::new("/nowhere")).status.code(), Some(2));
}

#[test]
fn what_is_no_image_is_refused_at_once_and_the_file_comes_first() {
    let folder = Folder::new("image-none");
    let pipe = folder.0.join("pipe");
    assert!(run(Command::new("mkfifo").arg(&pipe)).status.success());
    let trace = folder.0.join("a.trace");
    std::fs::write(&trace, b"COWSLIPT and so on").unwrap();
    let text = folder.0.join("text");
    std::fs::write(&text, "no image at all").unwrap();
    for (file, code, said) in [
        (&pipe, 2, "it is a FIFO, not a regular file"),
        (&PathBuf::from("/dev/zero"), 2, "it is a device, not a regular file"),
        (&folder.0, 2, "it is a directory, not a regular file"),
        (&folder.0.join("missing"), 2, "open an image: No such file or directory"),
        (&text, 6, "this is no Cowslip image"),
        (&trace, 6, "this is a trace, no image: `cowslip trace report` reads it"),
    ] {
        let said = format!("cowslip: {}: {said}", file.display());
        for command in ["info", "verify"] {
            let ran = image(command, file);
            assert_eq!(ran.status.code(), Some(code), "{command}: {}", ran.stderr);
            assert!(ran.stderr.starts_with(&said), "{command}: {}", ran.stderr);
        }
        let ran = run(Command::new(COWSLIP).arg("restore").arg(file).args(["--dump", "0:4K"]));
        assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
        assert!(ran.stderr.starts_with(&said), "{}", ran.stderr);
    }
    let (first, _) = chain(&folder);
    let report = run(Command::new(COWSLIP).args(["trace", "report"]).arg(&first));
    assert_eq!(report.status.code(), Some(6), "{}", report.stderr);
    assert!(report.stderr.contains("`cowslip image info` reads it"), "{}", report.stderr);
    let nowhere = ["image", "info", first.to_str().unwrap(), "--json", "/proc/nowhere/x"];
    let unwritable = run(Command::new(COWSLIP).args(nowhere));
    assert_eq!(unwritable.status.code(), Some(2), "{}", unwritable.stderr);
}

/// A chain of two images, with a root and one word changed.
fn chain(folder: &Folder) -> (PathBuf, PathBuf) {
    let (first, second) = (folder.0.join("first"), folder.0.join("second"));
    let mut options = SaveOptions::default();
    let root = Root { arena: 0, offset_bytes: 2 << 20, length_bytes: 4096 };
    options.roots.insert("table".into(), root);
    for (path, word) in [(&first, 1), (&second, 2)] {
        let arena = Arena::new(ByteCount::mib(16)).unwrap();
        let mut slice = arena.slice::<u64>(1 << 19).unwrap();
        slice.iter_mut().enumerate().for_each(|(i, value)| *value = i as u64 / 7 + 1);
        slice[1 << 18] = word;
        let frozen = arena.freeze().unwrap();
        save(&[&frozen], path, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        options.parent = Some(path.clone());
    }
    (first, second)
}

#[test]
fn a_difference_has_an_exit_code_of_its_own() {
    let folder = Folder::new("image-diff");
    let (first, second) = chain(&folder);
    let diff = |one: &Path, other: &Path, more: &[&str]| {
        run(Command::new(COWSLIP).args(["image", "diff"]).args(more).args([one, other]))
    };
    let same = diff(&first, &first, &[]);
    assert!(same.status.success() && same.stdout.contains("the same"), "{}", same.stderr);
    let other = diff(&first, &second, &[]);
    assert_eq!(other.status.code(), Some(1), "{}", other.stderr);
    for line in ["arena 0: 1 chunks, 1 pages, 1 B", "0x200000..0x201000 (4 KiB)", "root table"] {
        assert!(other.stdout.contains(line), "{line}: {}", other.stdout);
    }
    let json = diff(&first, &second, &["--json", "-"]);
    assert_eq!(json.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&json["schema"], &json["same"]), (&"cowslip.image-diff/1".into(), &false.into()));
    let range = &json["diff"]["arenas"][0]["ranges"][0];
    assert_eq!((&range["offset_bytes"], &range["length_bytes"]), (&0x20_0000.into(), &4096.into()));
    assert_eq!(json["diff"]["roots"][0], "table");
    // Trouble does not look like a difference.
    assert_eq!(diff(&first, Path::new("/nowhere"), &[]).status.code(), Some(2));
    assert_eq!(diff(&first, Path::new("/etc/passwd"), &[]).status.code(), Some(6));
}

#[test]
fn a_chain_is_merged_and_compressed() {
    let folder = Folder::new("image-merge");
    let (first, second) = chain(&folder);
    let merge = |output: &Path, more: &[&str]| {
        let mut command = Command::new(COWSLIP);
        run(command.args(["image", "merge"]).arg(&second).arg("-o").arg(output).args(more))
    };
    let length = |path: &Path| std::fs::metadata(path).unwrap().len();
    let merged = folder.0.join("merged");
    let mut last = u64::MAX;
    for how in ["none", "lz4", "zstd:19"] {
        let ran = merge(&merged, &["--compress", how, "--json", "-"]);
        assert!(ran.status.success(), "{}", ran.stderr);
        let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!((&json["images"], &json["chunks"]), (&2.into(), &2.into()), "{json}");
        assert_eq!(json["file_bytes"], length(&merged));
        assert!(length(&merged) < last, "{how}");
        last = length(&merged);
        assert!(image("verify", &merged).status.success());
        let same = run(Command::new(COWSLIP).args(["image", "diff"]).args([&merged, &second]));
        assert!(same.status.success(), "{}", same.stdout);
    }
    assert_eq!(merge(&first, &[]).status.code(), Some(2), "it is needed");
    assert_eq!(merge(&merged, &["--compress", "zip"]).status.code(), Some(2));
    assert_eq!(length(&merged), last, "as it was");
    let into_itself = merge(&second, &[]);
    assert!(into_itself.status.success(), "{}", into_itself.stderr);
    assert!(into_itself.stdout.contains("complete"), "{}", into_itself.stdout);
    std::fs::remove_file(&first).unwrap();
    assert!(image("verify", &second).status.success(), "it needs no other");
}

#[cfg(not(feature = "remote"))]
#[test]
fn without_object_stores_a_url_is_told_where_they_are() {
    let folder = Folder::new("image-url");
    let file = folder.0.join("store");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    for command in [
        &["image", "push", file, "s3://b/store"][..],
        &["image", "pull", "s3://b/store", file],
        &["image", "ls", "s3://b/store"],
        &["image", "prune", "s3://b/store", "--keep", "1"],
        &["image", "verify", "s3://b/store"],
        &["image", "diff", file, "s3://b/store"],
        &["restore", "s3://b/store"],
        &["serve", "s3://b/store"],
    ] {
        let ran = run(Command::new(COWSLIP).args(command));
        assert_eq!(ran.status.code(), Some(3), "{command:?}: {}", ran.stderr);
        let is_said = ran.stderr.starts_with("cowslip: s3://b/store: ");
        assert!(is_said && ran.stderr.contains("feature `remote`"), "{}", ran.stderr);
    }
}
