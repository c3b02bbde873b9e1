//! `cowslip image` on images that the library made, whole and damaged.

mod support;

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use cowslip::Arena;
use cowslip::image::{SaveOptions, save};
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
    file.write_all_at(&[0xff], 4096 + 1_000_003).unwrap();
    let damaged = image("verify", &second);
    assert_eq!(damaged.status.code(), Some(6), "{}", damaged.stderr);
    assert!(damaged.stderr.contains(first.to_str().unwrap()), "{}", damaged.stderr);
    assert_eq!(image("info", Path::new("/etc/passwd")).status.code(), Some(6));
    assert_eq!(image("info", Path::new("/nowhere")).status.code(), Some(1));
}
