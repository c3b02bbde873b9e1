//! A registry that answers anything: a pull ends with an image, or is refused.
//!
//! An input is four parts between lines of dashes: the document of the tag, one that is named by its digest, a layer, and the
//! challenge that asks for credentials. `DOC`, `LAYER` and `SIZE` in them stand for the right digests and the right length.
#![no_main]

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex};

use cowslip::Arena;
use cowslip::image::{Compression, Image, SaveOptions, save};
use cowslip::units::ByteCount;
use cowslip_fuzz::{folder, proceed, seed};
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};

const DASHES: &[u8] = b"\n---\n";
const BLOCK: usize = 512;

#[derive(Default)]
struct Registry {
    tagged: Vec<u8>,
    named: Vec<u8>,
    layer: Vec<u8>,
    challenge: Option<String>,
}

struct World {
    folder: PathBuf,
    address: SocketAddr,
    registry: Mutex<Registry>,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(&stream);
        }
    });
    World { folder: folder(), address, registry: Mutex::default() }
});

fn digest(bytes: &[u8]) -> String {
    let hex = Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("memory");
        hex
    });
    format!("sha256:{hex}")
}

/// Answers one request, and closes.
fn answer(mut stream: &TcpStream) -> io::Result<()> {
    let (mut line, mut lines) = (String::new(), BufReader::new(stream).lines());
    while let Some(next) = lines.next().transpose()?.filter(|next| !next.is_empty()) {
        line = if line.is_empty() { next } else { line };
    }
    let path = line.split(' ').nth(1).unwrap_or_default();
    let registry = WORLD.registry.lock().expect("a registry");
    let (status, head, body) = match path {
        "/v2/" => match &registry.challenge {
            Some(challenge) => ("401 Unauthorized", challenge.clone(), &b""[..]),
            None => ("200 OK", String::new(), &b""[..]),
        },
        _ if path.starts_with("/token") => ("200 OK", String::new(), &br#"{"token": "a"}"#[..]),
        _ if path.contains("/blobs/") => ("200 OK", String::new(), &registry.layer[..]),
        _ if path.ends_with("/manifests/t") => ("200 OK", String::new(), &registry.tagged[..]),
        _ => ("200 OK", String::new(), &registry.named[..]),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{head}\r\n"
    )?;
    stream.write_all(body)
}

/// A layer as a push makes it, of any file.
fn layer(bytes: &[u8]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, "friday", bytes).expect("memory");
    tar.into_inner().expect("memory")
}

fn seeds() {
    let arena = Arena::new(ByteCount::mib(2)).expect("an arena");
    arena.slice::<u8>(100).expect("room").fill(7);
    let path = WORLD.folder.join("seed");
    let options = SaveOptions { compression: Compression::Zstd(3), ..SaveOptions::default() };
    save(&[&arena.freeze().expect("a freeze")], &path, &options, &mut proceed).expect("an image");
    let identity = Image::open(&path).expect("an image").identity();
    let descriptor = format!(
        r#"{{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "LAYER", "size": SIZE, "annotations":
        {{"org.opencontainers.image.title": "friday", "cowslip.identity": "{identity}"}}}}"#
    );
    let config =
        r#"{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "DOC", "size": 2}"#;
    let manifest = |layers: &str| {
        format!(
            r#"{{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": {config},
            "layers": [{layers}]}}"#
        )
    };
    let one = manifest(&descriptor);
    let two = manifest(&format!("{}, {descriptor}", descriptor.replace("friday", "monday")));
    let index = r#"{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests":
        [{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "DOC", "size": 9, "platform":
        {"architecture": "amd64", "os": "linux"}}]}"#;
    let whole = layer(&fs::read(&path).expect("an image"));
    let short = layer(b"no image");
    let challenge = r#"Bearer realm="REALM",service="registry",scope="repository:r:pull""#;
    for (name, tagged, named, layer, challenge) in [
        ("one", &one[..], "", &whole, ""),
        ("two", &two, "", &short, ""),
        ("index", index, &one, &short, challenge),
    ] {
        let parts = [tagged.as_bytes(), named.as_bytes(), &layer[..], challenge.as_bytes()];
        seed(name, &parts.join(DASHES));
    }
}

/// Replaces names by their values; `None` for a text that names another host.
fn complete(text: &[u8], with: &[(&str, &str)]) -> Option<Vec<u8>> {
    let mut text = String::from_utf8_lossy(text).into_owned();
    if text.contains("//") {
        return None;
    }
    for (name, value) in with {
        text = text.replace(name, value);
    }
    Some(text.into_bytes())
}

fn parts(input: &[u8]) -> Option<Registry> {
    let mut rest = input;
    let parts: [&[u8]; 4] = std::array::from_fn(|_| {
        let end = rest.windows(DASHES.len()).position(|window| window == DASHES);
        let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
        rest = behind.get(DASHES.len()..).unwrap_or_default();
        part
    });
    let [tagged, named, layer, challenge] = parts;
    let mut layer = layer.to_vec();
    if let Some(header) = layer.get_mut(..BLOCK) {
        let mut signed = tar::Header::from_byte_slice(header).clone();
        signed.set_cksum();
        header.copy_from_slice(signed.as_bytes());
    }
    let (layer_digest, size) = (digest(&layer), layer.len().to_string());
    let named = complete(named, &[("LAYER", &layer_digest), ("SIZE", &size)])?;
    let doc = digest(&named);
    let tagged = complete(tagged, &[("LAYER", &layer_digest), ("SIZE", &size), ("DOC", &doc)])?;
    let realm = format!("http://{}/token", WORLD.address);
    let challenge = complete(challenge, &[("REALM", &realm)])?;
    let challenge = String::from_utf8(challenge).ok().filter(|text| !text.is_empty());
    let challenge =
        challenge.map(|text| format!("WWW-Authenticate: {}\r\n", text.replace(['\r', '\n'], " ")));
    Some(Registry { tagged, named, layer, challenge })
}

fuzz_target!(init: seeds(), |input: &[u8]| {
    let Some(registry) = parts(input) else { return };
    *WORLD.registry.lock().expect("a registry") = registry;
    let place = WORLD.folder.join("pulled");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir(&place).expect("a folder");
    let url = format!("oci://{}/r:t", WORLD.address);
    let file = place.join("image");
    if cowslip_remote::pull(&url, &file, &mut proceed).is_ok() {
        Image::open(&file).expect("what was pulled");
    }
    for entry in fs::read_dir(&WORLD.folder).expect("a folder").flatten() {
        let name = entry.file_name();
        assert!(name == "pulled" || name == "seed", "a file beside the image's folder: {name:?}");
    }
});
