//! Places where the parents of an image may lie, and files that may not stand in for an image.

mod support;

use cowslip::image::{Checksum, Image, RestoreOptions, SaveOptions, Strategy, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, ErrorKind};
use support::PATIENCE;
use support::images::{Folder, proceed};

/// Makes the header's checksum right.
fn sign(bytes: &mut [u8]) {
    let header = Checksum::from_bytes(&bytes[..240]);
    bytes[240..256].copy_from_slice(&header.0);
}

/// The image, whose description names another file of its parent (docs/image-format.md).
fn with_parent_file(whole: &[u8], name: &str) -> Vec<u8> {
    let u64_at = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().unwrap()) as usize;
    let text = u64_at(72)..u64_at(72) + u64_at(80);
    let said = std::str::from_utf8(&whole[text.clone()]).unwrap();
    let named = |name: &str| format!("\"parent_file\": \"{name}\"");
    let changed = said.replace(&named("first"), &named(name));
    assert!(said.contains(&named("first")), "{said}");
    // The description is the last part before the index.
    let mut bytes = [&whole[..text.start], changed.as_bytes(), &whole[text.end..]].concat();
    let index_start = text.start + changed.len();
    for (at, value) in [(80, changed.len()), (104, index_start), (136, bytes.len())] {
        bytes[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
    }
    bytes[88..104].copy_from_slice(&Checksum::from_bytes(changed.as_bytes()).0);
    sign(&mut bytes);
    bytes
}

#[test]
fn a_parent_is_a_regular_file_beside_its_image() {
    let folder = Folder::new("parents");
    let [first, second] = ["first", "second"].map(|name| folder.file(name));
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let mut slice = arena.slice::<u64>(CHUNK_BYTES / 8).unwrap();
    slice.fill(7);
    let frozen = arena.freeze().unwrap();
    save(&[&frozen], &first, &SaveOptions::default(), &mut proceed).unwrap();
    let options = SaveOptions { parent: Some(first.clone()), ..SaveOptions::default() };
    save(&[&frozen], &second, &options, &mut proceed).unwrap();
    let whole = std::fs::read(&second).unwrap();
    let pipe = folder.file("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::create_dir(folder.file("days")).unwrap();
    std::fs::copy(&first, folder.file("days").join("first")).unwrap();
    let absolute = first.to_str().unwrap();
    let up = format!("../{}/first", folder.path().file_name().unwrap().to_str().unwrap());
    for (name, said) in [
        (absolute, "names no file in the image's own folder"),
        (&up, "names no file in the image's own folder"),
        ("days/first", "names no file in the image's own folder"),
        ("pipe", "it is a FIFO"),
        ("days", "it is a directory"),
        ("third", "No such file"),
    ] {
        std::fs::write(&second, with_parent_file(&whole, name)).unwrap();
        let error = Image::open(&second).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        assert!(error.to_string().contains(said), "{name}: {error}");
    }
    std::fs::copy(&first, folder.file("other")).unwrap();
    std::fs::write(&second, with_parent_file(&whole, "other")).unwrap();
    assert_eq!(Image::open(&second).unwrap().ancestors().len(), 1, "the test crafts what is read");
    let mut its_own = with_parent_file(&whole, "second");
    its_own.copy_within(16..32, 32);
    sign(&mut its_own);
    std::fs::write(&second, its_own).unwrap();
    let error = Image::open(&second).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("its parents are a circle"), "{error}");
}

#[test]
fn what_is_cut_short_while_it_is_open_is_damaged() {
    let folder = Folder::new("cut");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let mut slice = arena.slice::<u64>(4 * CHUNK_BYTES / 8).unwrap();
    slice.fill(7);
    save(&[&arena.freeze().unwrap()], &path, &SaveOptions::default(), &mut proceed).unwrap();
    let image = Image::open(&path).unwrap();
    image.check_lengths().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((4096 + CHUNK_BYTES) as u64).unwrap();
    let restore = |strategy| {
        let options = RestoreOptions { strategy, ..RestoreOptions::default() };
        image.restore(0, &options, &mut proceed)?.wait(PATIENCE).map(drop)
    };
    for (what, answer) in [
        ("verify", image.verify(&mut proceed)),
        ("eager", restore(Strategy::Eager)),
        ("hybrid", restore(Strategy::Hybrid)),
        ("check", image.check_lengths()),
    ] {
        let error = answer.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        let said = error.to_string();
        assert!(said.starts_with(path.to_str().unwrap()), "{what}: {said}");
        assert!(said.contains("it was cut short"), "{what}: {said}");
    }
}
