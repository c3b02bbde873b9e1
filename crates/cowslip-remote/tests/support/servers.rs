//! Third-party servers, as processes on loopback that end with the test. `tests/stores/install` installs them.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::{HttpRequest, HttpRequestBody};

use super::{BUCKET, Folder, KEY, PATIENCE, SECRET, skip};

pub const REGION: &str = "us-east-1";
/// Azurite's default, by its documentation.
pub const AZURE_ACCOUNT: &str = "devstoreaccount1";
const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A server with a bucket, or a container.
pub struct Server {
    _process: Process,
    _folder: Folder,
    /// Variables that make a process use it.
    pub environment: Vec<(&'static str, String)>,
    /// The URL of the bucket.
    pub bucket: String,
}

/// A process that ends with this value, and with the thread that started it.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        // A script ends the programs that it started when its input ends.
        if self.0.stdin.take().is_none() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// The directory in which `tests/stores/install` puts servers.
pub fn installed() -> PathBuf {
    match std::env::var_os("COWSLIP_STORES_DIR") {
        Some(place) => place.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/stores"),
    }
}

fn program(installed_as: &str, name: &str) -> OsString {
    let place = installed().join(installed_as).join(name);
    if place.exists() { place.into() } else { name.into() }
}

/// A port that is free at this moment.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Starts a program that is to listen at an address, and waits until it does.
pub fn listening(command: &mut Command, address: SocketAddr) -> Option<Process> {
    let name = PathBuf::from(command.get_program());
    let mut guarded = Command::new("setpriv");
    guarded.args(["--pdeathsig", "KILL", "--"]).arg(&name).args(command.get_args());
    let which = Command::new("which").arg(&name).stdout(Stdio::null()).status();
    if !which.is_ok_and(|status| status.success()) {
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        skip(&name, "it is not installed");
        return None;
    }
    guarded.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Process(guarded.spawn().unwrap());
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = TcpStream::connect(address) {
        assert!(Instant::now() < deadline, "{name:?} does not listen: {error}");
        let ended = process.0.try_wait().unwrap();
        assert!(ended.is_none(), "{name:?} ended: {ended:?}");
        std::thread::yield_now();
    }
    Some(process)
}

fn of_s3(address: SocketAddr) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ENDPOINT", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".into()),
        ("AWS_REGION", REGION.into()),
        ("AWS_ACCESS_KEY_ID", KEY.into()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.into()),
    ]
}

/// moto's server, from PyPI.
pub fn moto() -> Option<Server> {
    let address = free_address();
    let mut command = Command::new(program("moto/bin", "moto_server"));
    command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
    let process = listening(&mut command, address)?;
    let made = ask_s3(address, "PUT", &format!("/{BUCKET}"), &[], "");
    assert!(made.starts_with("HTTP/1.1 200"), "{made}");
    Some(Server {
        _process: process,
        _folder: Folder::new("moto"),
        environment: of_s3(address),
        bucket: format!("s3://{BUCKET}"),
    })
}

/// Ceph's radosgw, from Debian.
pub fn radosgw() -> Option<Server> {
    let folder = Folder::new("radosgw");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/stores/radosgw");
    let mut child = Command::new(script)
        .arg(folder.file("cluster"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said: Vec<String> = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .take(3)
        .map(|line| line.unwrap())
        .collect();
    let mut process = Process(child);
    let [endpoint, key, secret] = &said[..] else {
        let status = process.0.wait().unwrap();
        assert_eq!(status.code(), Some(3), "tests/stores/radosgw failed");
        skip("radosgw", "it is not installed");
        return None;
    };
    assert_eq!((key.as_str(), secret.as_str()), (KEY, SECRET));
    let address = endpoint.strip_prefix("http://").unwrap().parse().unwrap();
    let made = ask_s3(address, "PUT", &format!("/{BUCKET}"), &[], "");
    assert!(made.starts_with("HTTP/1.1 200"), "{made}");
    Some(Server {
        _process: process,
        _folder: folder,
        environment: of_s3(address),
        bucket: format!("s3://{BUCKET}"),
    })
}

/// Azurite, from npm.
pub fn azurite() -> Option<Server> {
    let (address, folder) = (free_address(), Folder::new("azurite"));
    let mut command = Command::new(program("azurite/node_modules/.bin", "azurite-blob"));
    command.args(["--silent", "--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort"]);
    command.arg(address.port().to_string()).arg("--location").arg(folder.file(""));
    let process = listening(&mut command, address)?;
    let container = format!("/{AZURE_ACCOUNT}/{BUCKET}?restype=container");
    let made = ask_azure(address, "PUT", &container);
    assert!(made.starts_with("HTTP/1.1 201"), "{made}");
    let environment = vec![
        ("AZURE_STORAGE_ENDPOINT", format!("http://{address}/{AZURE_ACCOUNT}")),
        ("AZURE_ALLOW_HTTP", "true".into()),
        ("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT.into()),
        ("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY.into()),
    ];
    Some(Server {
        _process: process,
        _folder: folder,
        environment,
        bucket: format!("az://{BUCKET}"),
    })
}

/// A server like Google's, which must be installed by hand: `go install github.com/fsouza/fake-gcs-server@latest`.
pub fn google() -> Option<(Process, SocketAddr)> {
    let address = free_address();
    let mut command = Command::new("fake-gcs-server");
    command.args(["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port"]);
    command.arg(address.port().to_string()).args(["-public-host", &address.to_string()]);
    let process = listening(&mut command, address)?;
    let bucket = format!(r#"{{"name": "{BUCKET}"}}"#);
    let made = ask(address, "POST", "/storage/v1/b", &[], bucket.as_bytes(), |_| {});
    assert!(made.starts_with("HTTP/1.1 200"), "{made}");
    Some((process, address))
}

/// The answer to a request, signed by S3's rules.
pub fn ask_s3(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> String {
    let credential = AwsCredential { key_id: KEY.into(), secret_key: SECRET.into(), token: None };
    ask(address, method, target, headers, body.as_bytes(), |request| {
        AwsAuthorizer::new(&credential, "s3", REGION).try_authorize(request, None).unwrap();
    })
}

fn ask_azure(address: SocketAddr, method: &str, target: &str) -> String {
    let credential = AzureCredential::AccessKey(AzureAccessKey::try_new(AZURE_KEY).unwrap());
    ask(address, method, target, &[], &[], |request| {
        AzureAuthorizer::new(&credential, AZURE_ACCOUNT).try_authorize(request).unwrap();
    })
}

/// The answer to a request, signed by `sign`.
pub fn ask(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    sign: impl FnOnce(&mut HttpRequest),
) -> String {
    let uri = format!("http://{address}{target}");
    let mut request = http::Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(HttpRequestBody::from(body.to_vec())).unwrap();
    sign(&mut request);
    let mut text = format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n");
    for (name, value) in request.headers() {
        text += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    if !request.headers().contains_key("host") {
        text += &format!("Host: {address}\r\n");
    }
    text += &format!("Content-Length: {}\r\n\r\n", body.len());
    let mut server = TcpStream::connect(address).unwrap();
    server.write_all(&[text.as_bytes(), body].concat()).unwrap();
    let mut answer = String::new();
    server.read_to_string(&mut answer).unwrap();
    answer
}
