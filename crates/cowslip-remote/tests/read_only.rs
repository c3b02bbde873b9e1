//! Images on servers that are only read from: nginx by HTTP and HTTPS, one without ranges, one of Google's kind.

mod support;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use cowslip::ErrorKind;
use cowslip::image::{RestoreOptions, SaveOptions, save};
use cowslip::units::CHUNK_BYTES;
use support::servers::{Process, ask, free_address, google, listening};
use support::{Folder, PATIENCE, WORDS, arena, image, pattern, proceed, skip, words, wrong_words};

const CHUNKS: usize = 12;
const SEED: u64 = 41;

/// nginx over a folder, `images`, that holds an image, `store`.
struct Nginx {
    folder: Folder,
    http: String,
    https: String,
    /// Serves a self-signed certificate.
    alone: String,
    _process: Process,
}

impl Nginx {
    fn start() -> Option<Self> {
        let folder = Folder::new("nginx");
        std::fs::create_dir(folder.file("images")).unwrap();
        image(&folder.file("images/store"), CHUNKS, SEED);
        certificates(&folder)?;
        let [plain, tls, own] = [(); 3].map(|()| free_address());
        let at = folder.file("");
        let at = at.to_str().unwrap();
        let configuration = format!(
            "daemon off; master_process off; error_log {at}error.log; pid {at}pid;
            events {{}}
            http {{
                access_log off;
                client_body_temp_path {at}body; proxy_temp_path {at}proxy;
                fastcgi_temp_path {at}fastcgi; uwsgi_temp_path {at}uwsgi; scgi_temp_path {at}scgi;
                server {{
                    listen {plain};
                    listen {tls} ssl;
                    ssl_certificate {at}server.pem;
                    ssl_certificate_key {at}server.key;
                    location /tagged/ {{ alias {at}images/; }}
                    location /dated/ {{ alias {at}images/; etag off; }}
                    location /neither/ {{ alias {at}images/; etag off; if_modified_since off;
                        add_header Last-Modified ''; }}
                    location /whole/ {{ alias {at}images/; max_ranges 0; }}
                    location /moved/ {{ rewrite ^/moved/(.*)$ /tagged/$1 redirect; }}
                    location /round/ {{ rewrite ^ /round/again redirect; }}
                    location /closed/ {{ return 403; }}
                }}
                server {{
                    listen {own} ssl;
                    ssl_certificate {at}alone.pem;
                    ssl_certificate_key {at}alone.key;
                    location / {{ alias {at}images/; }}
                }}
            }}"
        );
        std::fs::write(folder.file("nginx.conf"), configuration).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-c").arg(folder.file("nginx.conf")).arg("-p").arg(at);
        command.arg("-e").arg(folder.file("error.log"));
        let process = listening(&mut command, plain)?;
        let (http, https) = (format!("http://{plain}"), format!("https://{tls}"));
        let alone = format!("https://{own}");
        Some(Self { folder, http, https, alone, _process: process })
    }
}

/// Makes an authority's certificate, `ca.pem`; one signed by it, `server.pem`; and `alone.pem`, which is self-signed.
fn certificates(folder: &Folder) -> Option<()> {
    let settings = "[req]\ndistinguished_name = name\n[name]\n\
        [ca]\nbasicConstraints = critical,CA:TRUE\nsubjectKeyIdentifier = hash\n\
        [server]\nbasicConstraints = CA:FALSE\nsubjectAltName = IP:127.0.0.1\n";
    std::fs::write(folder.file("openssl.cnf"), settings).unwrap();
    let make = |name: &str, more: &[&str]| {
        let mut command = Command::new("openssl");
        let file = |ending: &str| folder.file(&format!("{name}.{ending}"));
        command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-batch"]);
        command.arg("-subj").arg(format!("/CN=Cowslip {name}"));
        command.arg("-config").arg(folder.file("openssl.cnf")).args(more);
        command.arg("-keyout").arg(file("key")).arg("-out").arg(file("pem"));
        command.output()
    };
    if let Err(error) = make("ca", &["-extensions", "ca"]) {
        skip("openssl", &error.to_string());
        return None;
    }
    let [ca, key] = ["ca.pem", "ca.key"].map(|name| folder.file(name));
    let by =
        ["-extensions", "server", "-CA", ca.to_str().unwrap(), "-CAkey", key.to_str().unwrap()];
    let signed = make("server", &by).unwrap();
    assert!(signed.status.success(), "{}", String::from_utf8_lossy(&signed.stderr));
    assert!(make("alone", &["-extensions", "server"]).unwrap().status.success());
    Some(())
}

fn is_whole(url: &str) {
    let there = cowslip_remote::open(url).unwrap();
    there.verify(&mut proceed).unwrap();
    assert_eq!(wrong_words(&there, CHUNKS, SEED).unwrap(), 0, "{url}");
    let restored = there.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
    assert_eq!(words(restored.arena())[9 * WORDS], pattern(SEED, 9 * WORDS));
    assert!(restored.wait(PATIENCE).unwrap());
    let all = words(restored.arena()).iter().enumerate();
    assert_eq!(all.filter(|(i, word)| **word != pattern(SEED, *i)).count(), 0, "{url}");
}

#[test]
fn what_nginx_serves_is_restored() {
    let Some(nginx) = Nginx::start() else { return };
    for place in ["tagged", "dated", "neither", "moved"] {
        is_whole(&format!("{}/{place}/store", nginx.http));
    }
    let pulled = nginx.folder.file("pulled");
    cowslip_remote::pull(&format!("{}/moved/store", nginx.http), &pulled, &mut proceed).unwrap();
    let original = std::fs::read(nginx.folder.file("images/store")).unwrap();
    assert!(std::fs::read(&pulled).unwrap() == original);
}

#[test]
fn a_chain_behind_nginx_is_found() {
    let Some(nginx) = Nginx::start() else { return };
    let (arena, mut slice) = arena(4, 42);
    let [first, second] =
        ["first", "second"].map(|name| nginx.folder.file(&format!("images/{name}")));
    let saved = |path: &Path, parent| {
        let options = SaveOptions { parent, ..SaveOptions::default() };
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        save(&[&frozen], path, &options, &mut proceed).unwrap();
    };
    saved(&first, None);
    slice[WORDS] = 7;
    saved(&second, Some(first.clone()));
    let there = cowslip_remote::open(&format!("{}/tagged/second", nginx.http)).unwrap();
    let restored = there.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
    assert!(restored.wait(PATIENCE).unwrap());
    assert!(words(restored.arena()) == &slice[..]);
}

#[test]
fn a_file_that_was_replaced_is_an_error_and_no_mixture() {
    let Some(nginx) = Nginx::start() else { return };
    let file = |name: &str| nginx.folder.file(&format!("images/{name}"));
    for (place, is_dated_alike) in
        [("tagged", false), ("dated", false), ("tagged", true), ("dated", true), ("neither", true)]
    {
        let url = format!("{}/{place}/replaced", nginx.http);
        image(&file("replaced"), CHUNKS, 43);
        let modified = std::fs::metadata(file("replaced")).unwrap().modified().unwrap();
        let there = cowslip_remote::open(&url).unwrap();
        assert_eq!(wrong_words(&there, 3, 43).unwrap(), 0);
        image(&file("next"), CHUNKS, 44);
        // With the same length and date nginx has the same tag: then only the checksums tell.
        let date = if is_dated_alike { modified } else { modified + Duration::from_secs(5) };
        File::options().write(true).open(file("next")).unwrap().set_modified(date).unwrap();
        std::fs::rename(file("next"), file("replaced")).unwrap();
        let wanted = if is_dated_alike { ErrorKind::Corrupt } else { ErrorKind::Vanished };
        for chunk in 3..5 {
            let error = there.read_chunk(0, chunk, &mut vec![0; CHUNK_BYTES]).unwrap_err();
            assert_eq!(error.kind(), wanted, "{place}: {error}");
        }
        assert_eq!(wrong_words(&cowslip_remote::open(&url).unwrap(), CHUNKS, 44).unwrap(), 0);
    }
}

#[test]
fn a_server_without_ranges_is_refused_at_once() {
    let refused = |url: &str| {
        let began = Instant::now();
        let error = cowslip_remote::open(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}: {error}");
        assert!(error.to_string().contains("ranges"), "{error}");
        assert!(began.elapsed() < PATIENCE / 4, "{:?}", began.elapsed());
    };
    let folder = Folder::new("whole");
    image(&folder.file("store"), 2, 45);
    let address = free_address();
    let mut command = Command::new("python3");
    command.args(["-m", "http.server", "--bind", "127.0.0.1", &address.port().to_string()]);
    command.arg("--directory").arg(folder.file(""));
    if let Some(_process) = listening(&mut command, address) {
        refused(&format!("http://{address}/store"));
    }
    let Some(nginx) = Nginx::start() else { return };
    refused(&format!("{}/whole/store", nginx.http));
}

#[test]
fn what_is_not_to_be_had_is_an_error() {
    let Some(nginx) = Nginx::start() else { return };
    let kinds = [
        ("closed/store", ErrorKind::Denied),
        ("tagged/missing", ErrorKind::File),
        ("round/store", ErrorKind::File),
    ];
    for (target, kind) in kinds {
        let error = cowslip_remote::open(&format!("{}/{target}", nginx.http)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    std::fs::write(nginx.folder.file("images/empty"), "").unwrap();
    std::fs::write(nginx.folder.file("images/other"), "no image").unwrap();
    for name in ["empty", "other"] {
        let error = cowslip_remote::open(&format!("{}/tagged/{name}", nginx.http)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

const READ: &str = "COWSLIP_TEST_READ";

/// Reads with an environment of its own.
#[test]
#[ignore = "a part of the others"]
fn reader() {
    let Ok(url) = std::env::var(READ) else { return };
    match cowslip_remote::open(&url) {
        Ok(_) => is_whole(&url),
        Err(error) => panic!("{:?}: {error}", error.kind()),
    }
}

fn read_with(url: &str, environment: &[(&str, &Path)]) -> Result<(), String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "reader", "--ignored", "--nocapture"]).env(READ, url);
    command.env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR");
    let run = command.envs(environment.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
    if run.status.success() { Ok(()) } else { Err(said) }
}

#[test]
fn an_authority_of_ones_own_is_trusted_when_the_environment_says_so() {
    let Some(nginx) = Nginx::start() else { return };
    let url = format!("{}/tagged/store", nginx.https);
    let [ca, alone] = ["ca.pem", "alone.pem"].map(|name| nginx.folder.file(name));
    read_with(&url, &[("SSL_CERT_FILE", &ca)]).unwrap();
    let began = Instant::now();
    let refused = read_with(&url, &[]).unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    // Uses another name than the certificate's.
    let elsewhere = url.replace("127.0.0.1", "localhost");
    let refused = read_with(&elsewhere, &[("SSL_CERT_FILE", &ca)]).unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
    let url = format!("{}/store", nginx.alone);
    read_with(&url, &[("SSL_CERT_FILE", &alone)]).unwrap();
    let refused = read_with(&url, &[("SSL_CERT_FILE", &ca)]).unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
}

/// The replacement of Google's store knows neither its uploads in parts nor its conditions.
#[test]
fn what_a_server_like_googles_has_is_restored() {
    let Some((_process, address)) = google() else { return };
    let folder = Folder::new("google");
    image(&folder.file("store"), CHUNKS, SEED);
    let content = std::fs::read(folder.file("store")).unwrap();
    let upload = "/upload/storage/v1/b/images/o?uploadType=media&name=stores/store";
    let answer = ask(address, "POST", upload, &[], &content, |_| {});
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let key = format!(
        r#"{{"private_key": "none", "private_key_id": "none", "client_email": "none",
            "disable_oauth": true, "gcs_base_url": "http://{address}"}}"#
    );
    let environment =
        [("GOOGLE_SERVICE_ACCOUNT_KEY", Path::new(&key)), ("GOOGLE_ALLOW_HTTP", Path::new("true"))];
    read_with("gs://images/stores/store", &environment).unwrap();
    skip("gcs_uploads", "fake-gcs-server has no uploads in parts by Google's XML interface");
}
