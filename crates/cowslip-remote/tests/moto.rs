//! The same against moto, another S3: one that compares and swaps. It is looked for as `moto_server` in `PATH`, or
//! where `COWSLIP_MOTO` says.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use cowslip::ErrorKind;
use cowslip::image::{Image, RestoreOptions};
use cowslip::units::CHUNK_BYTES;
use support::{
    BUCKET, Folder, PATIENCE, environment, folder, image, pattern, proceed, skip, words,
    wrong_words,
};

struct Moto(Child);

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it, with a bucket.
fn start() -> Option<(Moto, SocketAddr)> {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let program = std::env::var_os("COWSLIP_MOTO").unwrap_or_else(|| "moto_server".into());
    let child = Command::new(program)
        .args(["-H", "127.0.0.1", "-p", &address.port().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let moto = match child {
        Ok(child) => Moto(child),
        Err(error) => {
            skip("moto_server", &error.to_string());
            return None;
        }
    };
    let deadline = Instant::now() + PATIENCE;
    let mut server = loop {
        match TcpStream::connect(address) {
            Ok(server) => break server,
            Err(error) if Instant::now() > deadline => panic!("moto does not listen: {error}"),
            Err(_) => std::thread::yield_now(),
        }
    };
    let request = format!(
        "PUT /{BUCKET} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    server.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    server.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
    Some((moto, address))
}

#[test]
fn images_in_moto() {
    let Some((_moto, address)) = start() else { return };
    environment(address);
    exact_and_pinned();
    latest_is_the_youngest();
}

fn exact_and_pinned() {
    let local = Folder::new("moto");
    let [before, after] = ["before", "after"].map(|name| local.file(name));
    let saved = image(&before, 24, 21);
    image(&after, 24, 22);
    let url = folder("moto") + "/store";
    cowslip_remote::push(&before, &url, None, &mut proceed).unwrap();
    let there = cowslip_remote::open(&url).unwrap();
    assert_eq!(there.identity(), saved.identity());
    there.verify(&mut proceed).unwrap();
    let restored = there.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
    assert!(restored.wait(PATIENCE).unwrap());
    let all = words(restored.arena()).iter().enumerate();
    assert_eq!(all.filter(|(i, word)| **word != pattern(21, *i)).count(), 0);
    let back = local.file("back");
    cowslip_remote::pull(&url, &back, &mut proceed).unwrap();
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&before).unwrap());

    cowslip_remote::push(&after, &url, None, &mut proceed).unwrap();
    let error = there.read_chunk(0, 9, &mut vec![0; CHUNK_BYTES]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Vanished, "{error}");
    assert_eq!(wrong_words(&cowslip_remote::open(&url).unwrap(), 24, 22).unwrap(), 0);
}

fn latest_is_the_youngest() {
    let local = Folder::new("moto");
    let names: Vec<String> = (0..6).map(|i| format!("store-{i}")).collect();
    let images: Vec<Image> = names.iter().map(|name| image(&local.file(name), 2, 23)).collect();
    let url = folder("latest");
    let pointer = format!("{url}/latest");
    assert_eq!(cowslip_remote::read_latest(&pointer).unwrap(), None);
    for name in &names {
        cowslip_remote::push(&local.file(name), &format!("{url}/"), None, &mut proceed).unwrap();
    }
    // At once, the oldest last.
    std::thread::scope(|scope| {
        for (name, image) in names.iter().zip(&images).rev() {
            scope.spawn(|| cowslip_remote::set_latest(&pointer, name, image).unwrap());
        }
    });
    let latest = cowslip_remote::read_latest(&pointer).unwrap().unwrap();
    assert_eq!(latest.image, "store-5");
    let there = cowslip_remote::open(&pointer).unwrap();
    assert_eq!(there.identity(), images[5].identity());
    // An older one changes nothing, and a push says what it names.
    let pushed = cowslip_remote::push(
        &local.file("store-2"),
        &format!("{url}/"),
        Some("latest"),
        &mut proceed,
    );
    assert_eq!(pushed.unwrap().latest.unwrap().image, "store-5");
    let listed = cowslip_remote::list(&url).unwrap();
    assert_eq!(listed.len(), 7, "{listed:?}");
}
