//! Refused starts, which leave everything unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;

use cowslip::Arena;
use cowslip::image::{SaveOptions, save};
use cowslip::units::ByteCount;

use crate::client::{Client, ok};
use crate::server::{Server, home, image, refusal};
use crate::support::images::Folder;

/// Names and content of the images.
fn files(folder: &Folder) -> BTreeMap<String, Vec<u8>> {
    let names = folder.names().into_iter().filter(|name| name != "stderr" && name != "store.lock");
    names.map(|name| (name.clone(), fs::read(folder.file(&name)).unwrap())).collect()
}

/// A store with a chain of three images.
fn filled() -> Folder {
    let folder = home();
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
        let path = folder.file(name);
        // Between chunks there are unused zeroes.
        let bytes = fs::read(&path).unwrap();
        let of_chunk = 1_000_000 + bytes[1_000_000..].iter().position(|&byte| byte != 0).unwrap();
        for at in [20, of_chunk as u64] {
            // A bit of the header, or a bit of a chunk, which is found when the chunk is brought
            // in.
            let file = fs::File::options().read(true).write(true).open(&path).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 4], at).unwrap();
            let before = files(&folder);
            let server = Server::spawn(&folder, &["--every", "1ms"]);
            let complaints = folder.file("stderr");
            assert_eq!(server.end().code(), Some(6), "{name} at {at}");
            let said = fs::read_to_string(complaints).unwrap();
            assert!(said.contains(folder.file(name).to_str().unwrap()), "{said}");
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
    fs::rename(image(&folder), folder.file("elsewhere")).unwrap();
    let (code, said) = refusal(&folder, &[]);
    assert!(code == Some(6) && said.contains("store.2 is there"), "{code:?} {said}");
    fs::remove_file(folder.file("store.2")).unwrap();
    fs::rename(folder.file("elsewhere"), image(&folder)).unwrap();
    let (code, said) = refusal(&folder, &[]);
    assert!(code == Some(6) && said.contains("its parent"), "{code:?} {said}");

    let folder = home();
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    let mut proceed = |_| std::ops::ControlFlow::Continue(());
    let frozen = arena.freeze().unwrap();
    save(&[&frozen], &image(&folder), &SaveOptions::default(), &mut proceed).unwrap();
    let (code, said) = refusal(&folder, &[]);
    assert!(code == Some(6) && said.contains("another program"), "{code:?} {said}");
    fs::write(image(&folder), "no image at all").unwrap();
    assert_eq!(refusal(&folder, &[]).0, Some(6));
    assert_eq!(fs::read(image(&folder)).unwrap(), b"no image at all");
}

#[test]
fn what_is_taken_or_makes_no_sense_is_refused() {
    let folder = home();
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
    let socket = folder.file("socket");
    let options = ["--unix", socket.to_str().unwrap()];
    let (server, address) = Server::start(&folder, &options);
    assert_eq!(refusal(&home(), &options).0, Some(1));
    server.shut_down(Client::connect(address).unwrap());
    // A socket without a listener is replaced.
    let (server, address) = Server::start(&folder, &options);
    server.shut_down(Client::connect(address).unwrap());
    fs::remove_file(image(&folder)).unwrap();
    fs::create_dir(image(&folder)).unwrap();
    assert_eq!(refusal(&folder, &[]).0, Some(2), "a directory");
}
