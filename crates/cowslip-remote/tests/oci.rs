//! Images in a registry of OCI: Docker's own, of Debian's package `docker-registry`, on loopback. Images there are read
//! by `skopeo` and unpacked by `umoci`, as a container's runtime does.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cowslip::ErrorKind;
use cowslip::image::{Image, Progress, SaveOptions, save};
use support::{Folder, PATIENCE, SECRET, arena, image, pattern, proceed, skip, wrong_words};

/// `SECRET`, in the form of `htpasswd -B`.
const USERS: &str = "me:$2b$04$oKcqLWdwfpioD3cd6IK3Gu7dN9M70kaX67AtFDFU7K5crTRQZFRe.\n";

struct Registry {
    process: Child,
    host: String,
    folder: Folder,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Registry {
    fn start() -> Option<Self> {
        let folder = Folder::new("registry");
        let [users, root, config] = ["users", "root", "config.yml"].map(|name| folder.file(name));
        fs::write(&users, USERS).unwrap();
        let text = format!(
            "version: 0.1\nlog: {{level: info}}\nhttp: {{addr: '127.0.0.1:0'}}\n\
             storage: {{filesystem: {{rootdirectory: '{}'}}}}\n\
             auth: {{htpasswd: {{realm: images, path: '{}'}}}}\n",
            root.display(),
            users.display()
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(config).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = match command.stderr(Stdio::piped()).spawn() {
            Ok(process) => process,
            Err(error) => {
                skip("docker-registry", &error.to_string());
                return None;
            }
        };
        let mut told = BufReader::new(process.stderr.take().unwrap()).lines();
        let port = told
            .find_map(|line| {
                let line = line.unwrap();
                let (_, address) = line.split_once("listening on 127.0.0.1:")?;
                Some(address.split(|c: char| !c.is_ascii_digit()).next()?.to_owned())
            })
            .expect("it says where it listens");
        // The registry would stop if its output were not read.
        std::thread::spawn(move || told.for_each(drop));
        Some(Self { process, host: format!("127.0.0.1:{port}"), folder })
    }

    fn url(&self, tag: &str) -> String {
        format!("oci://{}/stores/warm:{tag}", self.host)
    }

    /// Stores credentials like `docker login`.
    fn sign_in(&self, password: &str) -> PathBuf {
        let auth = base64(format!("me:{password}").as_bytes());
        let file = self.folder.file("config.json");
        fs::write(&file, format!(r#"{{"auths": {{"{}": {{"auth": "{auth}"}}}}}}"#, self.host))
            .unwrap();
        file
    }

    /// Files of layers, the longest last.
    fn blobs(&self) -> Vec<PathBuf> {
        let root = self.folder.file("root/docker/registry/v2/blobs/sha256");
        let entries = |folder: &Path| {
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        let mut blobs: Vec<_> = entries(&root)
            .iter()
            .flat_map(|prefix| entries(prefix))
            .map(|digest| digest.join("data"))
            .collect();
        blobs.sort_by_key(|blob| fs::metadata(blob).unwrap().len());
        blobs
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let triple = |three: &[u8]| {
        let number = (0..3).fold(0, |all, i| all << 8 | usize::from(*three.get(i).unwrap_or(&0)));
        (0..4)
            .map(
                |i| if i > three.len() { '=' } else { LETTERS[number >> (18 - 6 * i) & 63].into() },
            )
            .collect::<String>()
    };
    bytes.chunks(3).map(triple).collect()
}

/// Returns true if it ran; a missing program is a skip.
fn run(program: &str, arguments: &[&str]) -> bool {
    match Command::new(program).args(arguments).stdin(Stdio::null()).output() {
        Ok(done) => {
            assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
            true
        }
        Err(error) => {
            skip(program, &error.to_string());
            false
        }
    }
}

#[test]
fn images_in_a_registry() {
    let Some(registry) = Registry::start() else { return };
    #[allow(unsafe_code)]
    // SAFETY: the only test of its process, and no other thread looks at the environment.
    unsafe {
        std::env::set_var("DOCKER_CONFIG", registry.folder.file(""));
    }
    who_may(&registry);
    let local = Folder::new("oci");
    let [first, second] = ["first.cowslip", "second.cowslip"].map(|name| local.file(name));
    chain(&first, &second);
    layers_are_sent_once(&registry, &first, &second);
    a_runtime_finds_the_files(&registry, &local, &[&first, &second]);
    pulled_as_it_was(&registry, &first, &second);
    broken_off(&registry, &local);
    what_is_not_ours(&registry, &local);
    damaged_on_the_way(&registry, &local);
}

/// Two images; the second holds the changes.
fn chain(first: &Path, second: &Path) {
    let (arena, mut words) = arena(4, 1);
    save(&[&arena.freeze().unwrap()], first, &SaveOptions::default(), &mut proceed).unwrap();
    words[0] = 17;
    let options = SaveOptions { parent: Some(first.to_owned()), ..SaveOptions::default() };
    save(&[&arena.freeze_timeout(PATIENCE).unwrap()], second, &options, &mut proceed).unwrap();
}

fn who_may(registry: &Registry) {
    let local = Folder::new("who");
    let file = local.file("image");
    image(&file, 1, 3);
    let denied = || {
        let error =
            cowslip_remote::push(&file, &registry.url("x"), None, &mut proceed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(
            !error.to_string().contains("secret") && error.to_string().contains("docker login")
        );
    };
    denied();
    registry.sign_in("another-secret");
    denied();
    registry.sign_in(SECRET);
    cowslip_remote::push(&file, &registry.url("x"), None, &mut proceed).unwrap();
}

fn layers_are_sent_once(registry: &Registry, first: &Path, second: &Path) {
    let sent = |file: &Path, tag: &str| {
        let pushed = cowslip_remote::push(file, &registry.url(tag), None, &mut proceed).unwrap();
        (pushed.sent_images, pushed.sent_bytes)
    };
    let length = |file: &Path| fs::metadata(file).unwrap().len();
    assert_eq!(sent(first, "first"), (1, length(first)));
    assert_eq!(sent(second, "second"), (1, length(second)));
    assert_eq!(sent(second, "again"), (0, 0));
}

fn a_runtime_finds_the_files(registry: &Registry, local: &Folder, files: &[&Path]) {
    let users = registry.folder.file("config.json");
    let image = format!("docker://{}/stores/warm:second", registry.host);
    let (layout, bundle) = (local.file("layout"), local.file("bundle"));
    let copied = format!("oci:{}:second", layout.display());
    let users = users.to_str().unwrap();
    let copy = ["copy", "--src-tls-verify=false", "--authfile", users, &image, &copied];
    if !run("skopeo", &copy) {
        return;
    }
    let copied = format!("{}:second", layout.display());
    if !run("umoci", &["unpack", "--image", &copied, bundle.to_str().unwrap()]) {
        return;
    }
    let names: Vec<_> = fs::read_dir(bundle.join("rootfs")).unwrap().collect();
    assert_eq!(names.len(), files.len());
    for file in files {
        let there = bundle.join("rootfs").join(file.file_name().unwrap());
        assert!(fs::read(there).unwrap() == fs::read(file).unwrap(), "{}", file.display());
    }
    // The view of a volume's user.
    let mounted = Image::open(&bundle.join("rootfs/second.cowslip")).unwrap();
    mounted.verify(&mut proceed).unwrap();
}

fn pulled_as_it_was(registry: &Registry, first: &Path, second: &Path) {
    let there = Folder::new("pulled");
    let target = there.file("newest");
    let pulled = cowslip_remote::pull(&registry.url("second"), &target, &mut proceed).unwrap();
    assert_eq!(pulled.images, 2);
    assert!(fs::read(&target).unwrap() == fs::read(second).unwrap());
    assert!(fs::read(there.file("first.cowslip")).unwrap() == fs::read(first).unwrap());
    let image = Image::open(&target).unwrap();
    assert_eq!(wrong_words(&image, 4, 1).unwrap(), 1, "{}", pattern(1, 0));
    // The needed image is there already; a folder gets the image under its own name.
    let pulled =
        cowslip_remote::pull(&registry.url("second"), &there.file(""), &mut proceed).unwrap();
    assert_eq!((pulled.images, there.file("second.cowslip").exists()), (1, true));
    fs::write(there.file("first.cowslip"), "another file").unwrap();
    let error = cowslip_remote::pull(&registry.url("second"), &target, &mut proceed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
}

fn broken_off(registry: &Registry, local: &Folder) {
    let file = local.file("long");
    image(&file, 8, 5);
    // In the check, in the digest, and in the transfer: each begins anew.
    for phase in 0..3 {
        let (mut now, mut last) = (0, 0);
        let mut stop = |progress: Progress| {
            now += usize::from(progress.done_bytes < last);
            last = progress.done_bytes;
            if now >= phase { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let error =
            cowslip_remote::push(&file, &registry.url("long"), None, &mut stop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        let error = cowslip_remote::pull(&registry.url("long"), &local.file("x"), &mut proceed)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::File, "{error}");
    }
    let mut stop = |_| ControlFlow::Break(());
    let error =
        cowslip_remote::pull(&registry.url("first"), &local.file("x"), &mut stop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(!local.file("x").exists());
}

fn what_is_not_ours(registry: &Registry, local: &Folder) {
    let error = cowslip_remote::open(&registry.url("first")).unwrap_err();
    assert!(error.to_string().contains("cowslip image pull"), "{error}");
    let pushed = cowslip_remote::push(
        &local.file("first.cowslip"),
        &registry.url("first"),
        Some("latest"),
        &mut proceed,
    );
    assert_eq!(pushed.unwrap_err().kind(), ErrorKind::Usage);
    let empty = format!("{}:empty", local.file("empty").display());
    let image = format!("docker://{}/stores/warm:empty", registry.host);
    let from = format!("oci:{empty}");
    let users = registry.folder.file("config.json");
    let is_there = run("umoci", &["init", "--layout", local.file("empty").to_str().unwrap()])
        && run("umoci", &["new", "--image", &empty])
        && run(
            "skopeo",
            &[
                "copy",
                "--dest-tls-verify=false",
                "--authfile",
                users.to_str().unwrap(),
                &from,
                &image,
            ],
        );
    if is_there {
        let pulled = cowslip_remote::pull(&registry.url("empty"), &local.file("x"), &mut proceed);
        let error = pulled.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Usage && error.to_string().contains("no image of Cowslip")
        );
    }
}

fn damaged_on_the_way(registry: &Registry, local: &Folder) {
    let blob = registry.blobs().pop().unwrap();
    let mut content = fs::read(&blob).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&blob, content).unwrap();
    let pulled = cowslip_remote::pull(&registry.url("first"), &local.file("x"), &mut proceed);
    assert_eq!(pulled.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(!local.file("x").exists());
}
