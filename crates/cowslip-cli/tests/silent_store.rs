//! `cowslip image` and `cowslip restore` against servers on loopback that accept and then stay silent, or refuse.
#![cfg(feature = "remote")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use cowslip::Arena;
use cowslip::image::{SaveOptions, save};
use cowslip::units::ByteCount;
use support::{COWSLIP, Folder, Ran, run};

/// A second after the signal, and as much again for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);

/// A server's answer to a request.
enum Answer {
    /// Reads no more, and sends nothing.
    Silence,
    /// Reads the body at this number of bytes a second, then answers.
    Slowly(u64, Vec<u8>),
    Now(Vec<u8>),
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Answer {
    let length = body.len();
    let mut all = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n");
    all = all.replace("\r\n\r\n", "\r\n") + "\r\n";
    Answer::Now([all.as_bytes(), body].concat())
}

struct Request {
    method: String,
    target: String,
    headers: String,
}

type Rule = dyn Fn(&Request) -> Answer + Send + Sync;

/// A server, and the requests that it did not answer.
struct Server {
    address: SocketAddr,
    silenced: Receiver<String>,
}

impl Server {
    fn start(rule: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, silenced) = channel();
        let rule: Arc<Rule> = Arc::new(rule);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (rule, tell) = (Arc::clone(&rule), tell.clone());
                thread::spawn(move || serve(client.unwrap(), &*rule, &tell));
            }
        });
        Self { address, silenced }
    }

    /// `cowslip` with arguments, and this server as S3.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(COWSLIP);
        command.args(arguments).env_remove("COWSLIP_STORE_TIMEOUT");
        for (name, value) in [
            ("AWS_ENDPOINT", format!("http://{}", self.address).as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "AKIACOWSLIPTEST"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ] {
            command.env(name, value);
        }
        command
    }

    /// Waits for a request that is not answered.
    fn wait(&self) -> String {
        self.silenced.recv_timeout(PATIENCE).expect("a request that gets no answer")
    }
}

fn serve(mut client: TcpStream, rule: &Rule, tell: &Sender<String>) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if !matches!(reader.read_line(&mut line), Ok(1..)) {
                return;
            }
            if line.trim_end().is_empty() {
                break;
            }
            lines.push(line.to_ascii_lowercase());
        }
        let mut words = lines[0].split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap().to_uppercase(), words.next().unwrap());
        let headers = lines.concat();
        let length = value(&headers, "content-length").map_or(0, |text| text.parse().unwrap());
        let request = Request { method, target, headers };
        let answer = match rule(&request) {
            Answer::Silence => {
                let _ = tell.send(format!("{} {}", request.method, request.target));
                // Waits until the client goes; its data is not read.
                while client.peek(&mut [0]).is_ok_and(|length| length > 0) {
                    thread::park_timeout(Duration::from_millis(100));
                }
                return;
            }
            Answer::Slowly(rate, answer) => {
                for _ in 0..length / (rate / 50) {
                    thread::sleep(Duration::from_millis(20));
                    reader.read_exact(&mut vec![0; (rate / 50) as usize]).unwrap();
                }
                reader.read_exact(&mut vec![0; (length % (rate / 50)) as usize]).unwrap();
                answer
            }
            Answer::Now(answer) => {
                reader.read_exact(&mut vec![0; length as usize]).unwrap();
                answer
            }
        };
        if client.write_all(&answer).is_err() {
            return;
        }
    }
}

fn value<'a>(headers: &'a str, name: &str) -> Option<&'a str> {
    headers.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// An image with this number of chunks.
fn image(folder: &Folder, chunks: usize) -> PathBuf {
    let file = folder.0.join("store");
    let arena = Arena::new(ByteCount::mib(2 * chunks as u64)).unwrap();
    let mut words = arena.slice::<u64>(chunks << 18).unwrap();
    let word = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    words.iter_mut().enumerate().for_each(|(i, value)| *value = word(i));
    let mut proceed = |_| ControlFlow::Continue(());
    save(&[&arena.freeze().unwrap()], &file, &SaveOptions::default(), &mut proceed).unwrap();
    file
}

const BEGUN: &[u8] = b"<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key>\
    <UploadId>1</UploadId></InitiateMultipartUploadResult>";
const COMPLETED: &[u8] = b"<CompleteMultipartUploadResult><Location>l</Location><Bucket>b</Bucket>\
    <Key>k</Key><ETag>\"2\"</ETag></CompleteMultipartUploadResult>";

/// A store that takes uploads, and is silent if `silent` holds for a request.
fn taking(silent: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Server {
    Server::start(move |request| match request.method.as_str() {
        _ if silent(request) => Answer::Silence,
        "POST" if request.target.contains("?uploads") => answer("200 OK", "", BEGUN),
        "POST" => answer("200 OK", "", COMPLETED),
        "PUT" => answer("200 OK", "ETag: \"1\"\r\n", b""),
        "DELETE" => answer("204 No Content", "", b""),
        _ => answer("404 Not Found", "", b""),
    })
}

/// A store with one object, `store`, that is silent if `silent` holds for a request.
fn holding(file: &Path, silent: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Server {
    let bytes = std::fs::read(file).unwrap();
    Server::start(move |request| {
        if silent(request) {
            return Answer::Silence;
        }
        if !request.target.ends_with("/store") {
            return answer("404 Not Found", "", b"");
        }
        let (from, until) = span(request).unwrap();
        let until = until.min(bytes.len() - 1);
        let headers = format!(
            "ETag: \"1\"\r\nLast-Modified: Tue, 01 Jan 2030 00:00:00 GMT\r\n\
             Content-Range: bytes {from}-{until}/{}\r\n",
            bytes.len()
        );
        answer("206 Partial Content", &headers, &bytes[from..=until])
    })
}

fn span(request: &Request) -> Option<(usize, usize)> {
    let (from, until) =
        value(&request.headers, "range")?.strip_prefix("bytes=")?.split_once('-')?;
    Some((from.parse().ok()?, until.parse().ok()?))
}

/// A process that is killed with this value.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        // A shell's background job ignores SIGINT, and so would this command. A signal with a handler is reset by exec.
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::default()).unwrap();
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Ends it by a signal; returns its status, its messages and the time that took.
    fn end(mut self, signal: &str) -> (ExitStatus, String, Duration) {
        let sent = Instant::now();
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            assert!(sent.elapsed() < PATIENCE, "{signal} does not end it");
            thread::sleep(Duration::from_millis(5));
        };
        let took = sent.elapsed();
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status, said, took)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command that waits for a silent server ends at either signal. Each process has a server of its own: a request that
/// arrives late would pass for the next one's, which is then signalled before it has a handler.
fn ends_at_signals(start: impl Fn() -> Server, arguments: &[&str], waits_for: &str) {
    for signal in ["-INT", "-TERM"] {
        let server = start();
        let process = Process::start(&mut server.command(arguments));
        while !server.wait().contains(waits_for) {}
        let (status, said, took) = process.end(signal);
        assert!(!status.success(), "{arguments:?} {signal}: {status}");
        assert!(took < AT_ONCE, "{arguments:?} {signal}: {took:?}, {said}");
    }
}

#[test]
fn a_push_to_a_silent_store_ends_at_a_signal() {
    let folder = Folder::new("silent-push");
    let file = image(&folder, 10);
    let push = ["image", "push", file.to_str().unwrap(), "s3://b/store", "--latest", "latest"];
    let silent_at = |method: &'static str, what: &'static str| {
        move || taking(move |request| request.method == method && request.target.contains(what))
    };
    ends_at_signals(|| taking(|_| true), &push, "POST");
    ends_at_signals(silent_at("POST", "?uploads"), &push, "?uploads");
    ends_at_signals(silent_at("PUT", "partnumber="), &push, "partnumber=");
    ends_at_signals(silent_at("PUT", "partnumber=1&"), &push, "partnumber=1&");
    ends_at_signals(silent_at("POST", "uploadid="), &push, "uploadid=");
    ends_at_signals(silent_at("GET", "latest"), &push, "latest");
    // The abort, which is not answered either, does not hold it up.
    let both = |request: &Request| matches!(request.method.as_str(), "PUT" | "DELETE");
    ends_at_signals(|| taking(both), &push, "PUT");
}

#[test]
fn what_waits_for_answers_of_a_silent_store_ends_at_a_signal() {
    let folder = Folder::new("silent-get");
    let file = image(&folder, 10);
    let target = folder.0.join("there");
    let pull = ["image", "pull", "s3://b/store", target.to_str().unwrap()];
    let dump = ["restore", "s3://b/store", "--dump", "0:20M"];
    let prune = ["image", "prune", "s3://b/", "--keep", "1"];
    for command in [&pull[..], &dump, &prune, &["image", "ls", "s3://b/"]] {
        ends_at_signals(|| holding(&file, |_| true), command, "GET");
    }
    // Silent once the image is open.
    let opens =
        |request: &Request| span(request).is_some_and(|(from, _)| from > 0 && from < 8 << 20);
    for command in [&pull[..], &dump, &["image", "verify", "s3://b/store"]] {
        ends_at_signals(|| holding(&file, opens), command, "GET");
    }
    let left: Vec<_> =
        std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [file], "no part of a file is left");
}

#[test]
fn a_server_of_a_silent_store_ends_at_a_signal() {
    let folder = Folder::new("silent-serve");
    let [socket, cache] = ["socket", "cache"].map(|name| folder.0.join(name));
    let serve = ["serve", "s3://b/store", "--socket", socket.to_str().unwrap(), "--cache"];
    for signal in ["-INT", "-TERM"] {
        let silent = Server::start(|_| Answer::Silence);
        let process = Process::start(silent.command(&serve).arg(&cache));
        silent.wait();
        let (status, said, took) = process.end(signal);
        assert!(status.success() && took < AT_ONCE, "{status} after {took:?}: {said}");
    }
}

/// Runs a command to its end with a short timeout.
fn impatiently(server: &Server, arguments: &[&str]) -> Ran {
    run(server.command(arguments).env("COWSLIP_STORE_TIMEOUT", "0.3"))
}

#[test]
fn a_silent_store_is_asked_again_and_is_an_error_in_the_end() {
    let folder = Folder::new("silent-error");
    let file = image(&folder, 3);
    let push = ["image", "push", file.to_str().unwrap(), "s3://b/store"];
    let target = folder.0.join("there");
    let pull = ["image", "pull", "s3://b/store", target.to_str().unwrap()];
    let puts = taking(|request| request.method == "PUT");
    let nothing = holding(&file, |_| true);
    let all = taking(|_| true);
    let ls = ["image", "ls", "s3://b/"];
    for (server, command) in [(&puts, &push[..]), (&all, &push), (&nothing, &pull), (&nothing, &ls)]
    {
        let ran = impatiently(server, command);
        assert_eq!(ran.status.code(), Some(2), "{command:?}: {}", ran.stderr);
        let is_said = ran.stderr.contains("the store was silent for 300ms");
        assert!(is_said && ran.stderr.contains("COWSLIP_STORE_TIMEOUT"), "{}", ran.stderr);
        assert!(server.silenced.try_iter().count() > 2, "{command:?} was not tried again");
    }
    let wrong = run(all.command(&push).env("COWSLIP_STORE_TIMEOUT", "soon"));
    assert_eq!(wrong.status.code(), Some(2), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("COWSLIP_STORE_TIMEOUT=soon"), "{}", wrong.stderr);
}

#[test]
fn a_pull_refuses_what_is_no_file() {
    let folder = Folder::new("silent-places");
    let server = holding(&image(&folder, 1), |_| false);
    let [fifo, lost] = ["fifo", "lost"].map(|name| folder.0.join(name));
    assert!(run(Command::new("mkfifo").arg(&fifo)).status.success());
    std::os::unix::fs::symlink(folder.0.join("nothing"), &lost).unwrap();
    let socket = folder.0.join("socket");
    // An image that is pulled to a folder is a file in it.
    for place in [fifo, lost] {
        let name = place.to_str().unwrap();
        let cache =
            ["serve", "s3://b/store", "--socket", socket.to_str().unwrap(), "--cache", name];
        let entry = || {
            let metadata = std::fs::symlink_metadata(&place).unwrap();
            (metadata.ino(), metadata.mode(), std::fs::read_dir(&folder.0).unwrap().count())
        };
        let before = entry();
        for command in [&["image", "pull", "s3://b/store", name][..], &cache] {
            let ran = run(&mut server.command(command));
            assert_eq!(ran.status.code(), Some(2), "{command:?}: {}", ran.stderr);
            assert_eq!(entry(), before, "{command:?}");
        }
    }
}

#[test]
fn a_slow_store_is_not_silent() {
    let folder = Folder::new("slow-push");
    let file = image(&folder, 10);
    // Two seconds for a part of 16 MiB.
    let slowly = |status: &str, headers: &str| match answer(status, headers, b"") {
        Answer::Now(answer) => Answer::Slowly(8 << 20, answer),
        other => other,
    };
    let store = Server::start(move |request| match request.method.as_str() {
        "POST" if request.target.contains("?uploads") => answer("200 OK", "", BEGUN),
        "POST" => answer("200 OK", "", COMPLETED),
        "PUT" => slowly("200 OK", "ETag: \"1\"\r\n"),
        _ => answer("404 Not Found", "", b""),
    });
    let push = ["image", "push", file.to_str().unwrap(), "s3://b/store"];
    let ran = run(store.command(&push).env("COWSLIP_STORE_TIMEOUT", "1.5"));
    assert!(ran.status.success(), "{}", ran.stderr);
}

#[test]
fn a_bucket_that_is_not_there_is_said_as_such() {
    let folder = Folder::new("no-bucket");
    let file = image(&folder, 1);
    let server = Server::start(|_| {
        let body = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchBucket</Code><Message>The \
            specified bucket does not exist</Message><BucketName>b</BucketName></Error>";
        answer("404 Not Found", "Content-Type: application/xml\r\n", body)
    });
    let target = folder.0.join("there");
    for command in [
        &["image", "push", file.to_str().unwrap(), "s3://b/store"][..],
        &["image", "pull", "s3://b/store", target.to_str().unwrap()],
        &["image", "ls", "s3://b/"],
    ] {
        let ran = run(&mut server.command(command));
        assert_eq!(ran.status.code(), Some(2), "{command:?}: {}", ran.stderr);
        let is_said = ran.stderr.contains("there is no such bucket");
        assert!(is_said && !ran.stderr.contains('<'), "{command:?}: {}", ran.stderr);
    }
}

#[test]
fn missing_credentials_are_said_with_what_was_looked_at() {
    let folder = Folder::new("credentials");
    let file = image(&folder, 1);
    let refusing = Server::start(|_| answer("403 Forbidden", "", b"<html>no</html>"));
    let silent = Server::start(|_| Answer::Silence);
    let nothing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let push = |url: &str, service: SocketAddr| {
        let mut command = Command::new(COWSLIP);
        command.args(["image", "push", file.to_str().unwrap(), url]).env_clear();
        command.env("HOME", &folder.0).env("AZURE_STORAGE_ACCOUNT_NAME", "me");
        // Every address is on loopback.
        for (name, value) in [
            ("AWS_ENDPOINT", format!("http://{nothing}")),
            ("AWS_METADATA_ENDPOINT", format!("http://{service}")),
            ("GOOGLE_BASE_URL", format!("http://{nothing}")),
            ("GCE_METADATA_HOST", service.to_string()),
            ("GCE_METADATA_IP", service.to_string()),
            ("AZURE_STORAGE_ENDPOINT", format!("http://{nothing}")),
            ("AZURE_MSI_ENDPOINT", format!("http://{service}/token")),
        ] {
            command.env(name, value);
        }
        for store in ["AWS", "GOOGLE", "AZURE"] {
            command.env(format!("{store}_ALLOW_HTTP"), "true");
        }
        let ran = run(&mut command);
        assert_eq!(ran.status.code(), Some(4), "{url}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("no credentials: ") && !ran.stderr.contains('<'),
            "{}",
            ran.stderr
        );
        ran.stderr
    };
    for service in [refusing.address, silent.address, nothing] {
        let said = push("s3://b/store", service);
        for word in [
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            &format!("the instance metadata service at http://{service}"),
            "~/.aws is not read",
        ] {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
    let said = push("gs://b/store", refusing.address);
    for word in ["GOOGLE_SERVICE_ACCOUNT", "application_default_credentials.json", "metadata"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let said = push("az://b/store", refusing.address);
    for word in ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY", "managed identity"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}
