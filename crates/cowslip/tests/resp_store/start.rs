//! Starts that are refused, and leave everything as it was.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;

use cowslip::Arena;
use cowslip::image::{SaveOptions, save};
use cowslip::units::ByteCount;

use crate::client::{Client, ok};
use crate::server::{Folder, Server, refusal};

/// Names and content of the images.
fn files(folder: &Folder) -> BTreeMap<String, Vec<u8>> {
    let names = folder.names().into_iter().filter(|name| name != "stderr" && name != "store.lock");
    names.map(|name| (name.clone(), fs::read(folder.0.join(name)).unwrap())).collect()
}

/// A store with a chain of three images.
fn filled() -> Folder {
    let folder = Folder::new();
    let (server, address) = Server::start(&folder, &["--every", "0s"]);
    let mut client = Client::connect(address).unwrap();
    for (key, mib) in [("a", 9), ("b", 3), ("c", 3)] {
        let value = vec![7; mib << 20];
        assert_eq!(client.ask(&[b"set", key.as_bytes(), &value]).unwrap(), ok());
        assert_eq!(client.ask(&["save"]).unwrap(), ok());
    }
    server.kill();
    assert_eq!(files(&folder).into_keys().collect::<Vec<_>>(), ["store", "store.1", "store.2"]);
    folder
}

#[test]
fn a_damaged_image_is_refused() {
    let folder = filled();
    for name in ["store", "store.1"] {
        for at in [20, 3_000_000] {
            // A bit of the header; a bit of a chunk, which is found when the chunk comes in.
            let path = folder.0.join(name);
            let file = fs::File::options().read(true).write(true).open(path).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 4], at).unwrap();
            let before = files(&folder);
            let server = Server::spawn(&folder, &["--every", "1ms"]);
            let complaints = folder.0.join("stderr");
            assert_eq!(server.end().code(), Some(6), "{name} at {at}");
            let said = fs::read_to_string(complaints).unwrap();
            assert!(said.contains(folder.0.join(name).to_str().unwrap()), "{said}");
            assert!(files(&folder) == before, "nothing is overwritten");
            file.write_all_at(&byte, at).unwrap();
        }
    }
    let (server, address) = Server::start(&folder, &[]);
    server.shut_down(Client::connect(address).unwrap());
}

#[test]
fn an_image_that_is_missing_or_of_another_program_is_refused() {
    let folder = filled();
    fs::rename(folder.image(), folder.0.join("elsewhere")).unwrap();
    let (code, said) = refusal(&folder, &[]);
    assert!(code == Some(6) && said.contains("store.2 is there"), "{code:?} {said}");
    fs::remove_file(folder.0.join("store.2")).unwrap();
    fs::rename(folder.0.join("elsewhere"), folder.image()).unwrap();
    let (code, said) = refusal(&folder, &[]);
    assert!(code == Some(6) && said.contains("its parent"), "{code:?} {said}");

    let folder = Folder::new();
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    let mut proceed = |_| std::ops::ControlFlow::Continue(());
    let frozen = arena.freeze().unwrap();
    save(&[&frozen], &folder.image(), &SaveOptions::default(), &mut proceed).unwrap();
    let (code, said) = refusal(&folder, &[]);
    assert!(code == Some(6) && said.contains("another program"), "{code:?} {said}");
    fs::write(folder.image(), "no image at all").unwrap();
    assert_eq!(refusal(&folder, &[]).0, Some(6));
    assert_eq!(fs::read(folder.image()).unwrap(), b"no image at all");
}

#[test]
fn what_is_taken_or_makes_no_sense_is_refused() {
    let folder = Folder::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = port.local_addr().unwrap().port().to_string();
    let (code, said) = refusal(&folder, &["--port", &taken]);
    assert!(code == Some(1) && said.contains(&format!("port {taken}")), "{code:?} {said}");
    assert_eq!(folder.names().len(), 0, "nothing is made");
    for options in [["--every", "1x"], ["--capacity", "0"], ["--port", "99999"], ["--chain", "0"]] {
        assert_eq!(refusal(&folder, &options).0, Some(2), "{options:?}");
    }
    let (server, address) = Server::start(&folder, &[]);
    let (code, said) = refusal(&folder, &[]);
    assert!(code == Some(1) && said.contains("another process"), "{code:?} {said}");
    server.shut_down(Client::connect(address).unwrap());
    let socket = folder.0.join("socket");
    let options = ["--unix", socket.to_str().unwrap()];
    let (server, address) = Server::start(&folder, &options);
    assert_eq!(refusal(&Folder::new(), &options).0, Some(1));
    server.shut_down(Client::connect(address).unwrap());
    // One that nobody listens on is replaced.
    let (server, address) = Server::start(&folder, &options);
    server.shut_down(Client::connect(address).unwrap());
    fs::remove_file(folder.image()).unwrap();
    fs::create_dir(folder.image()).unwrap();
    assert_eq!(refusal(&folder, &[]).0, Some(2), "a directory");
}
