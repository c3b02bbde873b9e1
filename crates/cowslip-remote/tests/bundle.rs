//! Files that belong together in a store: all of them, or none.

mod support;

use std::ops::ControlFlow;

use cowslip::ErrorKind;
use cowslip_remote::{Bundle, check_new, push_files};
use support::proxy::Fault;
use support::{Folder, folder, pattern, proceed, world};

/// The content of a file of this many words.
fn content(seed: u64, words: usize) -> Vec<u8> {
    (0..words).flat_map(|i| pattern(seed, i).to_le_bytes()).collect()
}

/// Two files, one of them in several parts and pieces.
fn files(local: &Folder) -> [(&'static str, std::path::PathBuf); 2] {
    let files = [("memory", local.file("memory")), ("state", local.file("state"))];
    std::fs::write(&files[0].1, content(1, 5_000_003)).unwrap();
    std::fs::write(&files[1].1, content(2, 1000)).unwrap();
    files
}

fn push(url: &str, files: &[(&'static str, std::path::PathBuf)]) -> cowslip::Result<u64> {
    let files: Vec<_> = files.iter().map(|(name, path)| (*name, path.as_path())).collect();
    push_files(url, &files, &mut proceed)
}

/// The objects of a test in the store.
fn objects(name: &str) -> Vec<String> {
    let (mut found, mut folders) =
        (Vec::new(), vec![world().root.join(support::BUCKET).join(name)]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.to_str().unwrap().to_owned()),
            }
        }
    }
    found
}

#[test]
fn files_come_back_as_they_were_despite_faults() {
    let world = world();
    let (local, back) = (Folder::new("bundle"), Folder::new("back"));
    let (files, url) = (files(&local), folder("bundle") + "/shop");
    check_new(&url, &mut proceed).unwrap();
    let sent = push(&url, &files).unwrap();
    assert_eq!(sent, 8 * (5_000_003 + 1000));
    let bundle = Bundle::open(&url).unwrap().unwrap();
    assert_eq!((bundle.len_bytes("state"), bundle.len_bytes("other")), (Some(8000), None));
    world.proxy.rule("bundle", |request| match request.number % 3 {
        0 => Fault::Cut,
        1 => Fault::Busy,
        _ => Fault::None,
    });
    bundle.fetch(&["memory", "state"], back.file("").as_path(), &mut proceed).unwrap();
    world.proxy.rule("bundle", |_| Fault::None);
    for (name, path) in &files {
        assert!(std::fs::read(back.file(name)).unwrap() == std::fs::read(path).unwrap(), "{name}");
    }
    let refused = bundle.fetch(&["other"], back.file("").as_path(), &mut proceed).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    // The names of those that are there stay theirs.
    let other = push(&url, &files[1..]).unwrap_err();
    assert!(other.to_string().contains("it exists"), "{other}");
    assert_eq!(check_new(&url, &mut proceed).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(objects("bundle").len(), 3, "those of the other are removed");
    std::fs::write(local.file("state"), b"another length").unwrap();
    let id = objects("bundle").into_iter().find(|path| path.ends_with("/state")).unwrap();
    std::fs::copy(local.file("state"), id).unwrap();
    let again = Folder::new("again");
    let refused = bundle.fetch(&["state"], again.file("").as_path(), &mut proceed).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
}

#[test]
fn a_push_that_fails_or_is_broken_off_leaves_nothing() {
    let world = world();
    let local = Folder::new("unfinished");
    let (files, url) = (files(&local), folder("unfinished") + "/shop");
    let missing = [files[0].clone(), ("state", local.file("none"))];
    assert_eq!(push(&url, &missing).unwrap_err().kind(), ErrorKind::File);
    let paths = files.each_ref().map(|(name, path)| (*name, path.as_path()));
    let mut steps = 0;
    let broken = push_files(&url, &paths, &mut |done| {
        steps += usize::from(done.done_bytes > 20 << 20);
        if steps > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(broken.unwrap_err().kind(), ErrorKind::Busy);
    // All files arrive, and the object that names them is refused.
    world.proxy.rule("unfinished", |request| {
        let is_last = request.method == "PUT" && request.target.ends_with("/shop");
        if is_last { Fault::Forbidden } else { Fault::None }
    });
    assert_eq!(push(&url, &files).unwrap_err().kind(), ErrorKind::Denied);
    world.proxy.rule("unfinished", |_| Fault::None);
    assert_eq!(objects("unfinished"), [] as [&str; 0]);
    assert_eq!(Bundle::open(&url).unwrap_err().kind(), ErrorKind::File);
    push(&url, &files).unwrap();
    assert!(Bundle::open(&url).unwrap().is_some());
}
