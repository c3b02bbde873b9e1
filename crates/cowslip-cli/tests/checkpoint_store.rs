//! `cowslip checkpoint` and `cowslip restore` of processes in an object store: s3s-fs on loopback.
#![cfg(feature = "remote")]

#[path = "../../cowslip-remote/tests/support/files.rs"]
#[allow(unreachable_pub, reason = "another crate's tests have it")]
mod files;
#[path = "../../cowslip-remote/tests/support/server.rs"]
#[allow(dead_code, unreachable_pub, reason = "another crate's tests have it")]
mod server;
mod support;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use support::checkpoint::{Server, criu, keys};
use support::{COWSLIP, Folder, Ran, run};

/// A store in a folder.
struct Store {
    folder: Folder,
    address: SocketAddr,
}

impl Store {
    fn start() -> Self {
        let folder = Folder::new("bucket");
        fs::create_dir(folder.0.join(server::BUCKET)).unwrap();
        let address = server::serve(folder.0.clone());
        Self { folder, address }
    }

    /// `cowslip` with this store.
    fn run(&self, temporary: &Path, arguments: &[&str]) -> Ran {
        let mut command = Command::new(COWSLIP);
        for (name, value) in [
            ("AWS_ENDPOINT", format!("http://{}", self.address).as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", server::KEY),
            ("AWS_SECRET_ACCESS_KEY", server::SECRET),
            ("TMPDIR", temporary.to_str().unwrap()),
        ] {
            command.env(name, value);
        }
        run(command.args(arguments))
    }

    fn url(&self, name: &str) -> String {
        format!("s3://{}/{name}", server::BUCKET)
    }

    /// The paths of the objects.
    fn objects(&self) -> Vec<String> {
        let (mut found, mut folders) = (Vec::new(), vec![self.folder.0.join(server::BUCKET)]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push(path.to_str().unwrap().to_owned()),
                }
            }
        }
        // Those of s3s-fs itself are hidden.
        found.retain(|path| !path.contains("/.s3s-fs"));
        found.sort();
        found
    }
}

fn is_empty(folder: &Folder) -> bool {
    fs::read_dir(&folder.0).unwrap().count() == 0
}

#[test]
fn a_process_comes_back_from_a_store() {
    let Some(criu) = criu() else { return };
    let Some(mut program) = Server::start() else { return };
    let (store, temporary) = (Store::start(), Folder::new("temporary"));
    let keys = keys(&program.folder);
    let criu = criu.to_str().unwrap();
    for (name, key, eager) in [("plain", None, None), ("secret", Some(&keys[0]), Some("--eager"))] {
        let url = store.url(&format!("days/{name}"));
        let before = program.ask();
        let pid = program.pid.to_string();
        let mut words = vec!["checkpoint", &pid, "-o", &url, "--criu", criu];
        words.extend(key.iter().flat_map(|key| ["--key-file", key.as_str()]));
        let ran = store.run(&temporary.0, &words);
        assert!(ran.status.success(), "{name}: {}", ran.stderr);
        assert!(ran.stdout.starts_with(&url), "{}", ran.stdout);
        assert!(program.ask().added > before.added, "it goes on");
        let ran = store.run(&temporary.0, &words);
        assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains("it exists"), "{}", ran.stderr);
        program.kill();
        let mut words = vec!["restore", &url, "--criu", criu];
        words.extend(eager);
        if let Some(key) = key {
            let ran = store.run(&temporary.0, &words);
            assert!(ran.stderr.contains("--identity"), "{}", ran.stderr);
            words.extend(["--identity", key.as_str()]);
        }
        let ran = store.run(&temporary.0, &words);
        assert!(ran.status.success(), "{name}: {}", ran.stderr);
        let restored = program.ask();
        assert_eq!((restored.left, restored.live_threads, restored.is_memory_right), (0, 4, true));
        assert!(before.added < restored.added, "{before:?}, {restored:?}");
        assert!(is_empty(&temporary), "nothing stays in the temporary folder");
    }
    let objects = store.objects();
    assert_eq!(objects.len(), 3 + 4, "{objects:#?}");
    let secret = objects.iter().filter(|path| path.contains("secret.files/"));
    for path in secret.filter(|path| path.ends_with(".age")) {
        assert!(fs::read(path).unwrap().starts_with(b"age-encryption.org/v1\n"), "{path}");
    }
    program.kill();
}

#[test]
fn a_store_that_cannot_take_it_is_known_before_the_process_is_held() {
    let Some(criu) = criu() else { return };
    let Some(mut program) = Server::start() else { return };
    let (store, temporary) = (Store::start(), Folder::new("temporary"));
    let criu = criu.to_str().unwrap();
    let pid = program.pid.to_string();
    let loopback = format!("http://{}/a", store.address);
    for (url, more, code, why) in [
        ("s3://nowhere/shop", &[][..], 2, "no such bucket"),
        (&store.url("folder/"), &[], 2, "a folder"),
        (&store.url("next"), &["--base", "."], 2, "--base is for folders"),
        (&loopback, &[], 3, "only s3, gs and az"),
        ("gopher://shop", &[], 2, "gopher://shop"),
    ] {
        let ran = store.run(
            &temporary.0,
            &[&["checkpoint", &pid, "--stop", "-o", url, "--criu", criu], more].concat(),
        );
        assert!(ran.stderr.contains(why), "{url}: {}", ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{url}: {}", ran.stderr);
        assert!(is_empty(&temporary), "{url}");
    }
    assert_eq!(program.ask().live_threads, 4, "it goes on");
    let ran = store.run(&temporary.0, &["restore", &store.url("none"), "--criu", criu]);
    assert!(ran.stderr.contains("no such object"), "{}", ran.stderr);
    let bucket = store.folder.0.join(server::BUCKET);
    let manifest =
        r#"{"schema": "cowslip.bundle/1", "id": "0", "files": {"memory.image": 7, "state": 7}}"#;
    let others = manifest.replace("state", "others");
    for (text, why) in [
        (manifest, "no such object"),
        (&manifest.replace("memory.image", "../out"), "no name of a file"),
        (&manifest.replace("bundle/1", "bundle/9"), "cowslip.bundle/9"),
        (&others, "no checkpoint's"),
        (&manifest.replace("cowslip", "other"), "image"),
    ] {
        fs::write(bucket.join("strange"), text).unwrap();
        let ran = store.run(&temporary.0, &["restore", &store.url("strange"), "--criu", criu]);
        assert!(!ran.status.success() && ran.stderr.contains(why), "{text}: {}", ran.stderr);
    }
    assert!(is_empty(&temporary));
    program.kill();
}
