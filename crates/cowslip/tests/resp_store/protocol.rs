//! Commands with Redis' semantics, and the heap behind them.

use std::process::Command;

use crate::client::{Client, Reply, ok};
use crate::server::{Server, home};
use crate::support::{self, Scatter};

fn bytes(value: &[u8]) -> Reply {
    Reply::Bytes(Some(value.into()))
}

fn error(reply: std::io::Result<Reply>) -> String {
    match reply {
        Ok(Reply::Error(text)) => text,
        other => panic!("not an error: {other:?}"),
    }
}

#[test]
fn commands_do_what_they_do_in_redis() {
    let folder = home();
    let (server, address) = Server::start(&folder, &["--every", "0s"]);
    let mut client = Client::connect(address).unwrap();
    let mut other = Client::connect(address).unwrap();
    let mut ask = |words: &str| client.ask(&words.split(' ').collect::<Vec<_>>());

    assert_eq!(ask("PING").unwrap(), Reply::Status("PONG".into()));
    assert_eq!(ask("echo hello").unwrap(), bytes(b"hello"));
    assert_eq!(ask("get absent").unwrap(), Reply::Bytes(None));
    assert_eq!(ask("SET a 1").unwrap(), ok());
    assert_eq!(other.ask(&["get", "a"]).unwrap(), bytes(b"1"));
    assert_eq!(ask("incr a").unwrap(), Reply::Integer(2));
    assert_eq!(ask("incr new").unwrap(), Reply::Integer(1));
    assert_eq!(ask("mset b 2 c 3 b 4").unwrap(), ok());
    let values = vec![bytes(b"2"), bytes(b"4"), bytes(b"3"), Reply::Bytes(None)];
    assert_eq!(ask("mget a b c d").unwrap(), Reply::Array(values));
    assert_eq!(ask("exists a a b d").unwrap(), Reply::Integer(3));
    assert_eq!(ask("dbsize").unwrap(), Reply::Integer(4));
    assert_eq!(ask("del a d a").unwrap(), Reply::Integer(1));
    assert_eq!(ask("set big 9223372036854775807").unwrap(), ok());
    assert!(error(ask("incr big")).contains("not an integer"));
    assert_eq!(ask("set word abc").unwrap(), ok());
    assert!(error(ask("incr word")).contains("not an integer"));
    for wrong in ["get", "mset a", "mset a 1 b", "del", "select x y", "waitaof 1"] {
        assert!(error(ask(wrong)).contains("arguments"), "{wrong}");
    }
    assert!(error(ask("lpush a b")).contains("unknown command 'lpush'"));
    assert!(error(ask("set a b EX 10")).contains("syntax"));
    assert_eq!(ask("flushall").unwrap(), ok());
    assert_eq!(ask("dbsize").unwrap(), Reply::Integer(0));
    assert_eq!(ask("quit").unwrap(), ok());
    assert!(ask("ping").is_err(), "it hung up");
    server.shut_down(other);
}

#[test]
fn requests_may_come_in_any_pieces_and_any_number() {
    let folder = home();
    let (server, address) = Server::start(&folder, &["--every", "0s"]);
    let mut client = Client::connect(address).unwrap();
    for piece in b"*3\r\n$3\r\nSET\r\n$2\r\n\r\n\r\n$0\r\n\r\nget absent\r\n\r\nPING\n".chunks(1) {
        client.send_raw(piece).unwrap();
    }
    assert_eq!(client.receive().unwrap(), ok());
    assert_eq!(client.receive().unwrap(), Reply::Bytes(None));
    assert_eq!(client.receive().unwrap(), Reply::Status("PONG".into()));
    assert_eq!(client.ask(&["get", "\r\n"]).unwrap(), bytes(b""));

    let long: Vec<u8> = (0..20_000_000_u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(client.ask(&[b"set", b"long".as_slice(), &long]).unwrap(), ok());
    assert!(client.ask(&["get", "long"]).unwrap() == bytes(&long));
    for i in 0..3000 {
        client.queue(&["incr", "n"]);
        client.queue(&["set", &format!("key{i}"), &i.to_string()]);
        client.queue(&["get", &format!("key{}", i / 2)]);
    }
    client.send().unwrap();
    for i in 0..3000 {
        assert_eq!(client.receive().unwrap(), Reply::Integer(i + 1));
        assert_eq!(client.receive().unwrap(), ok());
        assert_eq!(client.receive().unwrap(), bytes((i / 2).to_string().as_bytes()));
    }
    let bad = |request: &[u8]| {
        let mut client = Client::connect(address).unwrap();
        client.send_raw(request).unwrap();
        let said = error(client.receive());
        assert!(said.contains("Protocol error"), "{said}");
        assert!(client.receive().is_err(), "it hung up");
    };
    bad(b"*1\r\n:1\r\n");
    bad(b"*x\r\n");
    bad(b"*1\r\n$-1\r\n");
    bad(b"*1\r\n$99999999999\r\n");
    bad(b"*1\r\n$4\r\nPINGxx\r\n");
    bad(&[b'a'; 70_000]);
    server.shut_down(client);
}

/// Values of every size class, set, replaced and removed at random, compared with a map; then again
/// after a restart, with continuous checkpoints.
#[test]
fn the_heap_holds_what_a_map_holds_before_and_after() {
    let folder = home();
    let mut map = std::collections::HashMap::new();
    let mut scatter = Scatter(17);
    for life in 0..3 {
        let (server, address) = Server::start(&folder, &["--every", "5ms"]);
        let mut client = Client::connect(address).unwrap();
        for _ in 0..support::scaled(4000) {
            let key = format!("key{}", (scatter.next() >> 20) % 700).into_bytes();
            if scatter.next() >> 20 & 3 == 0 {
                let was_there = map.remove(&key).is_some();
                let removed = client.ask(&[b"del", key.as_slice()]).unwrap();
                assert_eq!(removed, Reply::Integer(was_there.into()));
            } else {
                let length = 1_usize << ((scatter.next() >> 20) % 17);
                let length = length + (scatter.next() >> 20) as usize % length - 1;
                let value: Vec<u8> = (0..length).map(|i| (i + map.len()) as u8).collect();
                assert_eq!(client.ask(&[b"set", key.as_slice(), &value]).unwrap(), ok());
                map.insert(key, value);
            }
        }
        assert_eq!(client.ask(&["save"]).unwrap(), ok());
        server.kill();
        let (server, address) = Server::start(&folder, &["--every", "5ms"]);
        let mut client = Client::connect(address).unwrap();
        assert_eq!(client.ask(&["dbsize"]).unwrap(), Reply::Integer(map.len() as i64));
        for (key, value) in &map {
            let found = client.ask(&[b"get", key.as_slice()]).unwrap();
            assert!(found == bytes(value), "life {life}: {}", String::from_utf8_lossy(key));
        }
        server.shut_down(client);
    }
}

#[test]
fn redis_cli_and_redis_benchmark_work() {
    if Command::new("redis-benchmark").arg("--version").output().is_err() {
        return support::skip("redis", "redis-benchmark is not installed");
    }
    let folder = home();
    let socket = folder.file("socket");
    let socket = socket.to_str().unwrap();
    let (server, address) = Server::start(&folder, &["--every", "100ms", "--unix", socket]);
    let port = address.port().to_string();
    let run = |command: &str, arguments: &str| {
        let ran = Command::new(command).args(arguments.split(' ')).output().unwrap();
        let (said, complained) = (String::from_utf8(ran.stdout), String::from_utf8(ran.stderr));
        assert!(ran.status.success(), "{complained:?}");
        said.unwrap() + &complained.unwrap()
    };
    let options = format!("-p {port} -t ping,set,get,incr,mset -n 20000 -r 5000 -P 16 --csv");
    let table = run("redis-benchmark", &options);
    for test in ["PING_INLINE", "SET", "GET", "INCR", "MSET (10 keys)"] {
        assert!(table.contains(&format!("\"{test}\"")), "{table}");
    }
    assert!(!table.contains("rror"), "{table}");
    let keys = run("redis-cli", &format!("-s {socket} dbsize"));
    assert!(keys.trim().parse::<u64>().unwrap() > 5000, "{keys}");
    assert_eq!(run("redis-cli", &format!("-p {port} set greeting hello")).trim(), "OK");
    assert_eq!(run("redis-cli", &format!("-p {port} get greeting")).trim(), "hello");
    server.shut_down(Client::connect(address).unwrap());
}
