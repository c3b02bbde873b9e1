//! Full memory and full disks.

use std::process::Command;

use crate::client::{Client, Reply, ok};
use crate::server::{Server, home};
use crate::support;
use crate::support::images::Folder;

#[test]
fn a_full_store_refuses_whole_commands_and_keeps_what_it_has() {
    let folder = home();
    let (server, address) = Server::start(&folder, &["--capacity", "32M", "--every", "10ms"]);
    let mut client = Client::connect(address).unwrap();
    let value = [3; 100_000];
    let is_refused = |reply: &Reply| matches!(reply, Reply::Error(text) if text.starts_with("OOM"));
    let mut keys = 0;
    loop {
        let reply = client.ask(&[b"set", format!("key{keys}").as_bytes(), &value]).unwrap();
        if is_refused(&reply) {
            break;
        }
        assert_eq!(reply, ok());
        keys += 1;
    }
    assert!((200..330).contains(&keys), "{keys} keys of 100 kB in 32 MiB");
    // Neither part of a command is done if there is no room for all of it.
    let pairs: [&[u8]; 5] = [b"mset", b"key0", b"small", b"new", &value];
    assert!(is_refused(&client.ask(&pairs).unwrap()));
    assert_eq!(client.ask(&["get", "key0"]).unwrap(), Reply::Bytes(Some(value.into())));
    assert_eq!(client.ask(&["dbsize"]).unwrap(), Reply::Integer(keys));

    assert_eq!(client.ask(&["del", "key0"]).unwrap(), Reply::Integer(1));
    assert_eq!(client.ask(&[b"set", b"again".as_slice(), &value]).unwrap(), ok());
    assert_eq!(client.ask(&["flushall"]).unwrap(), ok());
    for key in 0..keys {
        let reply = client.ask(&[b"set", format!("other{key}").as_bytes(), &value]).unwrap();
        assert_eq!(reply, ok(), "{key}: as many as before");
    }
    server.shut_down(client);
}

/// A file system of its own, as long as this value lives.
struct Disk<'a>(&'a Folder);

impl<'a> Disk<'a> {
    fn mount(folder: &'a Folder, options: &str) -> Option<Self> {
        let path = folder.path().to_str().unwrap();
        let arguments = ["-t", "tmpfs", "-o", options, "tmpfs", path];
        let mounted = Command::new("mount").args(arguments).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(folder))
    }

    fn resize(&self, options: &str) {
        let mut mount = Command::new("mount");
        let resized = mount.args(["-o", &format!("remount,{options}")]).arg(self.0.path()).status();
        assert!(resized.unwrap().success());
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_said_and_checkpoints_go_on_when_there_is_room() {
    let folder = home();
    let Some(disk) = Disk::mount(&folder, "size=12m") else {
        return support::skip("root", "a file system cannot be mounted");
    };
    let (server, address) = Server::start(&folder, &["--every", "10ms", "--chain", "2"]);
    let mut client = Client::connect(address).unwrap();
    let mut scatter = support::Scatter(5);
    let mut value = |_| scatter.next().to_le_bytes();
    let noise: Vec<u8> = (0..1 << 18).flat_map(&mut value).collect();
    assert_eq!(client.ask(&[b"set", b"first".as_slice(), &noise]).unwrap(), ok());
    assert_eq!(client.ask(&["save"]).unwrap(), ok());
    for i in 0..10 {
        let reply = client.ask(&[b"set", format!("more{i}").as_bytes(), &noise]).unwrap();
        assert_eq!(reply, ok(), "it serves");
    }
    server.until_it_complains("No space left on device");
    let Reply::Error(said) = client.ask(&["save"]).unwrap() else { panic!("there is no room") };
    assert!(said.contains("No space left on device"), "{said}");
    let durable = client.info("durable_writes").unwrap();
    assert!((1..11).contains(&durable), "{durable}");
    let answer = Reply::Array(vec![Reply::Integer(0), Reply::Integer(0)]);
    assert_eq!(client.ask(&["waitaof", "1", "0", "20"]).unwrap(), answer, "not durable");

    // The store continues from the last checkpoint that fitted.
    server.kill();
    let (server, address) = Server::start(&folder, &["--every", "10ms", "--chain", "2"]);
    let mut client = Client::connect(address).unwrap();
    assert_eq!(client.info("writes").unwrap(), durable);
    assert!(client.ask(&["get", "first"]).unwrap() == Reply::Bytes(Some(noise.clone())));
    for i in 0..10 {
        assert_eq!(client.ask(&[b"set", format!("more{i}").as_bytes(), &noise]).unwrap(), ok());
    }
    server.until_it_complains("No space left on device");
    disk.resize("size=100m");
    let answer = Reply::Array(vec![Reply::Integer(1), Reply::Integer(0)]);
    assert_eq!(client.ask(&["waitaof", "1", "0", "0"]).unwrap(), answer);
    server.until_it_complains("checkpoints succeed again");
    server.shut_down(client);
}
