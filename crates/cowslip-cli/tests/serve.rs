//! `cowslip serve` as a process: many workers, its end at work, other users, foreign sockets.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cowslip::image::served::{Answer, Request};
use cowslip::image::{Image, OnDamage, RestoreOptions, Restored, SaveOptions, Strategy, Via, save};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip::{Arena, ErrorKind, Place};
use cowslip_serve::metrics_of;
use cowslip_sys::memfile::{self, Seals};
use cowslip_sys::{Errno, socket};
use support::process::copy_program;
use support::{COWSLIP, Folder, run};

const PATIENCE: Duration = Duration::from_secs(120);
/// The user `nobody`.
const NOBODY: u32 = 65_534;
/// Set in a worker, to the socket.
const WORKER: &str = "COWSLIP_TEST_WORKER";

fn proceed(_: cowslip::image::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn word(i: usize) -> u64 {
    (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// An image with this much content.
fn image(folder: &Folder, mib: usize, compression: &str) -> PathBuf {
    let arena = Arena::new(ByteCount::mib(2 * mib as u64)).unwrap();
    let mut words = arena.slice::<u64>(mib << 17).unwrap();
    words.iter_mut().enumerate().for_each(|(i, value)| *value = word(i));
    let path = folder.0.join("image");
    let compression = compression.parse().unwrap();
    let options = SaveOptions { compression, ..SaveOptions::default() };
    save(&[&arena.freeze().unwrap()], &path, &options, &mut proceed).unwrap();
    path
}

/// A process that serves, and ends with the test.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(folder: &Folder, image: &Path, options: &[&str]) -> Self {
        let socket = folder.0.join("socket");
        let mut command = Command::new(COWSLIP);
        command.arg("serve").arg(image).arg("--socket").arg(&socket).args(options);
        Self::started(&mut command, socket)
    }

    fn started(command: &mut Command, socket: PathBuf) -> Self {
        let mut server = Self { child: command.spawn().unwrap(), socket };
        eventually("it listens", || {
            assert!(server.child.try_wait().unwrap().is_none(), "it ended");
            UnixStream::connect(&server.socket).is_ok()
        });
        server
    }

    fn metric(&self, name: &str) -> u64 {
        let text = metrics_of(&self.socket).unwrap();
        let start = format!("cowslip_serve_{name} ");
        text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
    }

    fn loaded(self) -> Self {
        eventually("it is loaded", || self.metric("images") == 1);
        self
    }

    fn via(&self) -> Via {
        Via::Server(self.socket.clone())
    }

    fn signal(&mut self, name: &str) -> ExitStatus {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

fn restored(image: &Image, via: Via) -> cowslip::Result<Restored> {
    image.restore(0, &RestoreOptions { via, ..RestoreOptions::default() }, &mut proceed)
}

fn assert_content(restored: &Restored, mib: usize) {
    let range = VirtRange::new(restored.arena().range().start, mib << 20);
    #[allow(unsafe_code)]
    // SAFETY: the test alone has the arena, and no other reference.
    let words = unsafe { restored.arena().adopt_slice::<u64>(range) }.unwrap();
    assert!(words.iter().enumerate().all(|(i, &value)| value == word(i)));
    std::mem::forget(words);
}

/// A field of `/proc/PID/smaps_rollup`, in bytes.
fn rollup(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// The worker: clones the served image, prints a line when it has read all of it, and ends when it is told to.
#[test]
fn worker() {
    let Some(socket) = std::env::var_os(WORKER).map(PathBuf::from) else { return };
    let image = Image::open(&socket.with_file_name("image")).unwrap();
    let template = image.template_via(&socket, 0).unwrap();
    let mut clone = template.map(Place::Anywhere).unwrap();
    let range = template.regions()[0].range();
    let words = clone.values::<u64>(range);
    assert!(words.iter().enumerate().all(|(i, &value)| value == word(i)));
    clone.values_mut::<u64>(range)[0] = 7;
    println!("\nready");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let words = clone.values::<u64>(range);
    assert!(words[0] == 7 && words[1..].iter().enumerate().all(|(i, &value)| value == word(i + 1)));
}

#[test]
fn a_hundred_workers_share_one_copy_of_what_is_served_and_outlive_the_server() {
    const WORKERS: usize = 100;
    const MIB: usize = 128;
    let folder = Folder::new("hundred");
    let path = image(&folder, MIB, "none");
    let mut server = Server::start(&folder, &path, &[]).loaded();
    let began = Instant::now();
    let mut workers: Vec<Child> = Vec::new();
    for _ in 0..WORKERS {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["worker", "--exact", "--nocapture"]).env(WORKER, &server.socket);
        workers.push(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    }
    let mut told: Vec<_> = workers
        .iter_mut()
        .map(|worker| BufReader::new(worker.stdout.take().unwrap()).lines())
        .collect();
    for told in &mut told {
        assert!(told.any(|line| line.unwrap() == "ready"), "it ended before it was ready");
    }
    println!("{WORKERS} workers had read {MIB} MiB each after {:?}", began.elapsed());
    assert_eq!(server.metric("loads_total"), 1);
    // All memory of these processes, with a page that several map in equal parts.
    let pids = workers.iter().map(Child::id).chain([server.child.id()]);
    let used: u64 = pids.map(|pid| rollup(pid, "Pss:")).sum();
    let image_bytes = (MIB << 20) as u64;
    let each = used.saturating_sub(image_bytes) as f64 / WORKERS as f64;
    println!("image {image_bytes} bytes, {each:.0} more a worker");
    assert!(used >= image_bytes, "all of it is mapped by somebody: {used}");
    assert!(each <= image_bytes as f64 * 0.02, "{each:.0} bytes a worker");
    let killed = server.signal("-KILL");
    assert!(!killed.success());
    for worker in &mut workers {
        worker.stdin.take().unwrap().write_all(&[1]).unwrap();
    }
    // Read to the end, so that no worker waits for room.
    told.into_iter().flatten().for_each(drop);
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
}

#[test]
fn a_server_that_is_killed_while_it_loads_and_lends_harms_nobody() {
    const MIB: usize = 128;
    let folder = Folder::new("killed");
    // Content that takes long to decode is being loaded for long.
    let path = image(&folder, MIB, "zstd:3");
    let mut lent = 0;
    for round in 0..40 {
        // The socket of the last server is still there.
        let mut server = Server::start(&folder, &path, &[]);
        let image = Image::open(&path).unwrap();
        let restored = restored(&image, server.via()).unwrap();
        if round % 4 == 3 {
            // A client that waits for the whole image gets an error.
            let socket = server.socket.clone();
            let waiting = std::thread::spawn(move || image.template_via(&socket, 0).map(drop));
            server.signal("-KILL");
            let _ = waiting.join().unwrap();
        } else {
            server.signal("-KILL");
        }
        let progress = restored.progress();
        let was_lent = restored.strategy() != Strategy::Resident;
        lent += u32::from(was_lent && progress.done_bytes < progress.total_bytes);
        assert_content(&restored, MIB);
        assert!(restored.wait(PATIENCE).unwrap());
        assert_content(&restored, MIB);
        if lent >= 3 && round >= 3 {
            return;
        }
    }
    panic!("the server was killed in the middle of a restore {lent} times");
}

#[test]
fn a_signal_ends_it_cleanly_and_leaves_a_socket_of_another_alone() {
    let folder = Folder::new("clean");
    let path = image(&folder, 4, "none");
    for signal in ["-TERM", "-INT"] {
        let mut server = Server::start(&folder, &path, &[]).loaded();
        assert_eq!(server.signal(signal).code(), Some(0), "{signal}");
        assert!(!server.socket.exists(), "{signal}");
    }
    let mut server = Server::start(&folder, &path, &[]).loaded();
    std::fs::remove_file(&server.socket).unwrap();
    let another = UnixListener::bind(&server.socket).unwrap();
    assert_eq!(server.signal("-TERM").code(), Some(0));
    assert!(server.socket.exists(), "it is not the one that it made");
    drop(another);
    // Other files than sockets are left alone too.
    std::fs::remove_file(&server.socket).unwrap();
    for make in [
        |at: &Path| std::fs::write(at, "mine").unwrap(),
        |at: &Path| {
            std::os::unix::fs::symlink("/nowhere", at).unwrap();
        },
    ] {
        make(&server.socket);
        let mut command = Command::new(COWSLIP);
        let ran = run(command.arg("serve").arg(&path).arg("--socket").arg(&server.socket));
        assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
        assert!(server.socket.symlink_metadata().is_ok());
        std::fs::remove_file(&server.socket).unwrap();
    }
}

#[test]
fn many_that_begin_at_once_over_a_socket_left_behind_are_one_in_the_end() {
    let folder = Folder::new("race");
    let path = image(&folder, 4, "none");
    let socket = folder.0.join("socket");
    for _ in 0..5 {
        drop(UnixListener::bind(&socket).unwrap());
        let serve = |number| {
            let mut command = Command::new(COWSLIP);
            // By either of two paths.
            let at = if number % 2 == 0 { &socket } else { Path::new("socket") };
            command.arg("serve").arg(&path).arg("--socket").arg(at).current_dir(&folder.0);
            Server { child: command.stderr(Stdio::null()).spawn().unwrap(), socket: socket.clone() }
        };
        let mut servers: Vec<Server> = (0..6).map(serve).collect();
        eventually("all but one end", || {
            let ended = |server: &mut Server| server.child.try_wait().unwrap().is_some();
            servers.iter_mut().filter_map(|server| ended(server).then_some(())).count() == 5
        });
        let image = Image::open(&path).unwrap();
        assert_content(&restored(&image, Via::Server(socket.clone())).unwrap(), 4);
        for server in &mut servers {
            if server.child.try_wait().unwrap().is_none() {
                assert!(server.signal("-TERM").success());
            }
        }
        assert!(!socket.exists());
    }
}

#[test]
fn a_socket_that_was_passed_is_served_and_not_removed() {
    let folder = Folder::new("passed");
    let path = image(&folder, 4, "none");
    let socket = folder.0.join("passed");
    let listener = UnixListener::bind(&socket).unwrap();
    // Passes a socket like systemd: descriptor 3, and variables that name the process.
    let passed = |fd: OwnedFd, count: u32| {
        let script =
            format!("LISTEN_PID=$$ LISTEN_FDS={count} exec \"$0\" serve \"$1\" 3<&0 </dev/null");
        let mut command = Command::new("sh");
        command.args(["-c", &script, COWSLIP]).arg(&path).stdin(Stdio::from(fd));
        command
    };
    let mut command = passed(listener.into(), 1);
    let mut server = Server::started(&mut command, socket.clone());
    let image = Image::open(&path).unwrap();
    assert_content(&restored(&image, server.via()).unwrap(), 4);
    assert!(server.signal("-TERM").success());
    assert!(socket.exists(), "it is not its own");

    let refused = |mut command: Command| {
        let ended = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("LISTEN_FDS"), "{ended:?}");
    };
    let other = || UnixListener::bind(folder.0.join("other")).unwrap();
    refused(passed(std::fs::File::open(&path).unwrap().into(), 1));
    refused(passed(UnixStream::pair().unwrap().0.into(), 1));
    refused(passed(std::net::TcpListener::bind("127.0.0.1:0").unwrap().into(), 1));
    refused(passed(other().into(), 2));
}

#[test]
fn a_file_that_cannot_be_served_is_an_error_at_once() {
    let folder = Folder::new("nothing");
    let damaged = folder.0.join("damaged");
    std::fs::write(&damaged, vec![b'x'; 1 << 16]).unwrap();
    for (path, code) in [(folder.0.join("none"), 2), (folder.0.clone(), 2), (damaged, 6)] {
        let socket = folder.0.join("socket");
        let ran = run(Command::new(COWSLIP).arg("serve").arg(&path).arg("--socket").arg(&socket));
        assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains(path.to_str().unwrap()), "{}", ran.stderr);
        assert!(!socket.exists());
    }
}

/// In a folder that all users can write to, such as `/tmp`, any user may make and lock a file beside the socket, or
/// lock the folder.
#[test]
fn a_server_keeps_no_right_and_reads_only_in_the_folders_of_its_images() {
    let (folder, secret) = (Folder::new("confined"), Folder::new("confined-secret"));
    let image_path = image(&folder, 16, "none");
    let hidden = image(&secret, 8, "none");
    let (socket, log) = (folder.0.join("socket"), folder.0.join("log"));
    let mut command = Command::new(COWSLIP);
    command.arg("serve").arg(&image_path).arg("--socket").arg(&socket);
    command.stderr(std::fs::File::create(&log).unwrap());
    let server = Server::started(&mut command, socket).loaded();
    let tasks = format!("/proc/{}/task", server.child.id());
    let mut threads = 0;
    for task in std::fs::read_dir(tasks).unwrap() {
        // A thread that ended meanwhile.
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else {
            continue;
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        let capabilities = u64::from_str_radix(&field("CapPrm:"), 16).unwrap();
        assert_eq!(capabilities & !(1 << CAP_DAC_READ_SEARCH), 0, "{status}");
        assert_eq!(field("NoNewPrivs:"), "1");
        threads += 1;
    }
    assert!(threads > 0);
    // Its memory is as huge as that of a process that kept its rights.
    let loaded = restored(&Image::open(&image_path).unwrap(), server.via()).unwrap();
    assert_content(&loaded, 16);
    let own = Arena::new(ByteCount::mib(4)).unwrap();
    if own.pages().is_huge() {
        let range = VirtRange::new(loaded.arena().range().start, 16 << 20);
        let mapped = huge_mapped_bytes(range);
        assert_eq!(mapped, 16 << 20, "on huge pages");
    }
    // The same name leads to an image elsewhere now.
    let hidden_image = Image::open(&hidden).unwrap();
    std::fs::remove_file(&image_path).unwrap();
    std::os::unix::fs::symlink(&hidden, &image_path).unwrap();
    let refused = restored(&hidden_image, server.via());
    if std::fs::read_to_string(&log).unwrap().contains("this kernel has no Landlock") {
        return println!("SKIPPED: landlock: the server reads what its user may");
    }
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("does not serve this image"), "{refused}");
    // In its own folder a new image is found.
    std::fs::remove_file(&image_path).unwrap();
    std::fs::copy(&hidden, &image_path).unwrap();
    assert_content(&restored(&hidden_image, server.via()).unwrap(), 8);
}

const CAP_DAC_READ_SEARCH: u32 = 2;

/// Bytes that huge pages map in this process.
fn huge_mapped_bytes(range: VirtRange) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let usage = cowslip_sys::procfs::usage_of(&smaps, |mapping| range.covers(mapping.range));
    usage.shmem_huge_bytes
}

/// Opens what it got again, for writing; writes, truncates and seals it. Returns true if that
/// changed anything.
fn attack(files: &[OwnedFd]) -> bool {
    let [base, token, ..] = files else { panic!("{files:?}") };
    let itself = format!("/proc/self/fd/{}", base.as_raw_fd());
    let mut is_changed = false;
    for opened in [
        std::fs::File::options().read(true).write(true).open(&itself),
        std::fs::File::options().write(true).truncate(true).open(&itself),
        Ok(base.try_clone().unwrap().into()),
    ] {
        let Ok(file) = opened else { continue };
        is_changed |= file.write_at(b"changed", 0).is_ok() || file.set_len(0).is_ok();
    }
    let token = std::fs::File::from(token.try_clone().unwrap());
    is_changed |= token.set_len(0).is_ok() || token.set_len(1 << 40).is_ok();
    for seal in [Seals::WRITE, Seals::FUTURE_WRITE, Seals::SEAL] {
        let _ = memfile::seal(token.as_fd(), seal);
    }
    is_changed
}

#[test]
fn a_receiver_changes_nothing_that_others_get() {
    let folder = Folder::new("receiver");
    let path = image(&folder, 4, "none");
    let program = folder.0.join("cowslip");
    copy_program(COWSLIP, &program);
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for (path, mode) in [(&program, 0o755), (&path, 0o644), (&folder.0, 0o777)] {
        set(path, mode);
    }
    let opened = Image::open(&path).unwrap();
    let own = cowslip_sys::process::effective_uid();
    // Root's server has a mount of its own; another user's has memfds.
    for user in if own == 0 { vec![0, NOBODY] } else { vec![own] } {
        let socket = folder.0.join(format!("socket-{user}"));
        let mut command = Command::new(&program);
        command.arg("serve").arg(&path).arg("--socket").arg(&socket).uid(user).current_dir("/");
        let server = Server::started(command.env_remove("XDG_RUNTIME_DIR"), socket.clone());
        eventually("it is loaded", || {
            let restored = restored_as(&program, &path, &socket, user);
            assert_eq!(restored, word(0).to_le_bytes());
            let stream = UnixStream::connect(&socket).unwrap();
            Request::Metrics.ask(&stream).unwrap();
            let mut text = String::new();
            (&stream).read_to_string(&mut text).unwrap();
            text.contains("cowslip_serve_images 1\n")
        });
        for _ in 0..3 {
            let stream = UnixStream::connect(&socket).unwrap();
            let mut request = b"COWSLIPQ\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
            request.extend(opened.identity().0);
            request.extend([0; 8]);
            (&stream).write_all(&request).unwrap();
            let (_, files) = socket::receive(stream.as_fd(), &mut [0; 4096]).unwrap();
            assert!(!attack(&files), "as user {user}");
            drop(stream);
            let restored = restored_as(&program, &path, &socket, user);
            assert_eq!(restored, word(0).to_le_bytes(), "as user {user}");
        }
        drop(server);
    }
}

/// The first word of an image, as the command restores it from a server.
fn restored_as(program: &Path, image: &Path, socket: &Path, user: u32) -> Vec<u8> {
    let mut command = Command::new(program);
    command.arg("restore").arg(image).args(["--dump", "0:8", "--via"]).arg(socket).uid(user);
    command.current_dir("/").stderr(Stdio::inherit()).output().unwrap().stdout
}

#[test]
fn a_lock_of_another_users_holds_up_no_server() {
    let folder = Folder::new("locked");
    let path = image(&folder, 4, "none");
    let directory = std::fs::File::open(&folder.0).unwrap();
    directory.lock().unwrap();
    let file = folder.0.join("socket.lock");
    let beside = std::fs::File::create(&file).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    beside.lock().unwrap();
    if cowslip_sys::process::effective_uid() == 0 {
        std::os::unix::fs::chown(&file, Some(NOBODY), None).unwrap();
    } else if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        return println!("SKIPPED: xdg_runtime_dir: this user has no folder for a lock");
    }
    let mut server = Server::start(&folder, &path, &[]).loaded();
    assert!(server.signal("-TERM").success());
    assert!(file.exists(), "it is not its own");
}

#[test]
fn without_an_option_it_listens_where_the_environment_says() {
    let folder = Folder::new("environment");
    let path = image(&folder, 4, "none");
    let (named, runtime) = (folder.0.join("named"), folder.0.join("cowslip-serve.socket"));
    for (variables, socket) in [
        (["", folder.0.to_str().unwrap()], &runtime),
        ([named.to_str().unwrap(), folder.0.to_str().unwrap()], &named),
    ] {
        let command = || {
            let mut command = Command::new(COWSLIP);
            command.arg("serve").env("COWSLIP_SERVE", variables[0]);
            command.env("XDG_RUNTIME_DIR", variables[1]);
            command
        };
        let mut server = Server::started(command().arg(&path), socket.clone());
        let asked = run(command().arg("--metrics"));
        assert!(asked.stdout.contains("cowslip_serve_requests_total 1"), "{}", asked.stdout);
        assert!(server.signal("-TERM").success());
    }
}

#[test]
fn systemd_starts_it_when_somebody_asks() {
    const ACTIVATE: &str = "systemd-socket-activate";
    if Command::new(ACTIVATE).arg("--version").stdout(Stdio::null()).status().is_err() {
        return println!("SKIPPED: {ACTIVATE}: it is not installed");
    }
    let folder = Folder::new("activate");
    let path = image(&folder, 4, "none");
    let socket = folder.0.join("socket");
    let mut command = Command::new(ACTIVATE);
    command.arg("-l").arg(&socket).arg(COWSLIP).arg("serve").arg(&path);
    let mut server = Server { child: command.stderr(Stdio::null()).spawn().unwrap(), socket };
    eventually("it listens", || server.socket.exists());
    let image = Image::open(&path).unwrap();
    // It may exist before it listens.
    let mut got = None;
    eventually("it answers", || {
        got = restored(&image, server.via()).ok();
        got.is_some()
    });
    assert_content(&got.unwrap(), 4);
    assert!(server.signal("-TERM").success(), "it is the process that was started");
}

#[test]
fn another_user_gets_nothing_and_is_given_nothing() {
    let folder = Folder::new("users");
    let path = image(&folder, 4, "none");
    if cowslip_sys::process::effective_uid() != 0 {
        return println!("SKIPPED: root: only root can be somebody else");
    }
    // The other user can read both here.
    let program = folder.0.join("cowslip");
    copy_program(COWSLIP, &program);
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(&program, 0o755);
    set(&path, 0o644);
    let mut server = Server::start(&folder, &path, &[]).loaded();
    let as_nobody = |options: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("restore").arg(&path).args(["--dump", "0:8"]).args(options).uid(NOBODY);
        command.env_remove("COWSLIP_SERVE").current_dir("/");
        command
    };
    let via = ["--via", server.socket.to_str().unwrap()];
    let refused = run(&mut as_nobody(&via));
    assert_eq!(refused.status.code(), Some(4), "{}", refused.stderr);
    assert_eq!(server.metric("refused_peers_total"), 0, "it could not even connect");
    // The socket is opened to all users.
    set(&server.socket, 0o666);
    let refused = run(&mut as_nobody(&via));
    assert!(!refused.status.success(), "{}", refused.stderr);
    assert_eq!(server.metric("refused_peers_total"), 1);
    let read = |command: &mut Command| command.stderr(Stdio::inherit()).output().unwrap().stdout;
    let from_file = read(as_nobody(&[]).env("COWSLIP_SERVE", &server.socket));
    assert_eq!(from_file, word(0).to_le_bytes(), "the file has it");
    assert_eq!(server.metric("refused_peers_total"), 2);
    assert!(server.signal("-TERM").success());

    // The other way round: root takes nothing from another user's server.
    let theirs = folder.0.join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    set(&theirs, 0o777);
    let socket = theirs.join("socket");
    let mut command = Command::new(&program);
    command.arg("serve").arg(&path).arg("--socket").arg(&socket).uid(NOBODY).current_dir("/");
    let server = Server::started(&mut command, socket.clone());
    let image = Image::open(&path).unwrap();
    let refused = restored(&image, server.via()).unwrap_err();
    assert!(refused.to_string().contains("another user"), "{refused}");
    let mut command = Command::new(COWSLIP);
    command.arg("restore").arg(&path).args(["--dump", "0:8"]).env("COWSLIP_SERVE", &socket);
    assert_eq!(read(&mut command), word(0).to_le_bytes(), "the file has it");
}

#[test]
fn a_server_that_is_suspended_holds_up_nobody_who_may_read_the_file() {
    let folder = Folder::new("suspended");
    let path = image(&folder, 4, "none");
    let server = Server::start(&folder, &path, &[]).loaded();
    let kill = |name: &str| {
        let pid = server.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    let read_file = |of: &str| {
        let began = Instant::now();
        let mut command = Command::new(COWSLIP);
        command.arg("restore").arg(&path).args(["--dump", "0:8"]);
        let ran = command.env("COWSLIP_SERVE", &server.socket).output().unwrap();
        assert_eq!(ran.stdout, word(0).to_le_bytes(), "{of}: {ran:?}");
        // A client that must use the server waits a minute.
        assert!(began.elapsed() < Duration::from_secs(40), "{of}: {:?}", began.elapsed());
    };
    kill("-STOP");
    read_file("it does not answer");
    let mut waiting = Vec::new();
    let full = loop {
        match socket::connect_at_once(&server.socket) {
            Ok(stream) => waiting.push(stream),
            Err(errno) => break errno,
        }
    };
    assert_eq!(full, Errno::AGAIN);
    read_file("nobody else can wait for it");
    let image = Image::open(&path).unwrap();
    assert_eq!(restored(&image, server.via()).unwrap_err().kind(), ErrorKind::Busy);
    let asked = metrics_of(&server.socket).unwrap_err();
    assert_eq!(asked.kind(), std::io::ErrorKind::WouldBlock);
    let mut second = Command::new(COWSLIP);
    let ran = run(second.arg("serve").arg(&path).arg("--socket").arg(&server.socket));
    assert_eq!(ran.status.code(), Some(70), "{}", ran.stderr);
    drop(waiting);
    kill("-CONT");
    eventually("it answers again", || restored(&image, server.via()).is_ok());
}

/// Sends a byte a second until the server has closed the connection, and returns the time that took.
fn drip(mut stream: UnixStream) -> Duration {
    let began = Instant::now();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut said = b"COWSLIPQ\x01".iter();
    while began.elapsed() < PATIENCE {
        // It may be closed by now.
        let _ = stream.write_all(&[*said.next().unwrap_or(&0)]);
        match stream.read(&mut [0]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            _ => return began.elapsed(),
        }
    }
    panic!("it is heard for ever");
}

#[test]
fn a_request_has_one_deadline_and_the_end_waits_for_nobody() {
    let folder = Folder::new("prompt");
    let path = image(&folder, 4, "none");
    let mut server = Server::start(&folder, &path, &[]).loaded();
    let connect = || UnixStream::connect(&server.socket).unwrap();
    // A byte a second would be a request in 48.
    let heard = drip(connect());
    assert!(heard < Duration::from_secs(30), "{heard:?}");
    let image = Image::open(&path).unwrap();
    let stays = connect();
    let request = Request::Template { image: image.identity(), arena: 0 };
    assert_eq!(request.ask(&stays).unwrap(), Answer::Follows);
    let silent = connect();
    let drips = std::thread::spawn({
        let stream = connect();
        move || drip(stream)
    });
    assert_eq!(server.metric("templates_total"), 1, "those before are accepted");
    let began = Instant::now();
    assert!(server.signal("-TERM").success());
    // Less than the time for which a client may be silent.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    drips.join().unwrap();
    drop((stays, silent));
}

#[test]
fn clients_that_say_nothing_half_or_nonsense_hold_nobody_up() {
    let folder = Folder::new("silent");
    let path = image(&folder, 4, "none");
    let mut server = Server::start(&folder, &path, &["--clients", "128"]).loaded();
    let connect = |said: &[u8]| {
        let mut stream = UnixStream::connect(&server.socket).unwrap();
        let _ = stream.write_all(said);
        stream
    };
    // One after the other, they would take longer than any client waits.
    let silent: Vec<_> =
        (0..100).map(|i| connect(&b"COWSLIPQ\x01\0\0\0\0\0\0\0\x03"[..i % 18])).collect();
    let image = Image::open(&path).unwrap();
    assert_content(&restored(&image, server.via()).unwrap(), 4);
    drop(silent);
    let mut random = 1u64;
    for _ in 0..300 {
        let mut said = b"COWSLIPQ\x01\0\0\0\0\0\0\0".to_vec();
        for _ in 0..5 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            said.extend((random % 5).to_le_bytes());
        }
        let len = said.len();
        said[(random % len as u64) as usize] ^= (random >> 8) as u8;
        said.truncate(len - (random % 9) as usize);
        // Ends without reading.
        drop(connect(&said));
    }
    eventually("there is room again", || restored(&image, server.via()).is_ok());
    assert!(server.child.try_wait().unwrap().is_none());
    assert!(server.signal("-TERM").success());
}

#[test]
fn an_image_that_is_cut_short_or_replaced_stays_what_it_was_in_memory() {
    let folder = Folder::new("cut");
    let path = image(&folder, 8, "none");
    let server = Server::start(&folder, &path, &[]).loaded();
    let opened = Image::open(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    let kept = restored(&opened, server.via()).unwrap();
    assert_eq!(kept.strategy(), Strategy::Resident);
    assert_content(&kept, 8);
    // The file is another image now, or none.
    Image::open(&path).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert_content(&restored(&opened, server.via()).unwrap(), 8);
    assert!(kept.wait(PATIENCE).unwrap());
    drop(server);
    assert_content(&kept, 8);
}

#[test]
fn an_image_that_is_damaged_is_told_of_to_all_who_ask_and_never_zeroes() {
    const MIB: usize = 16;
    let folder = Folder::new("damaged");
    let path = image(&folder, MIB, "none");
    // A word of the last chunk, wherever it is in the file.
    let at = (MIB << 17) - 1000;
    let bytes = std::fs::read(&path).unwrap();
    let place = bytes.chunks_exact(8).position(|part| part == word(at).to_le_bytes()).unwrap() * 8;
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[bytes[place] ^ 1], place as u64).unwrap();
    let log = std::fs::File::create(folder.0.join("log")).unwrap();
    let socket = folder.0.join("socket");
    let mut command = Command::new(COWSLIP);
    command.arg("serve").arg(&path).arg("--socket").arg(&socket).stderr(log);
    let server = Server::started(&mut command, socket);
    let image = Image::open(&path).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let refused = image.template_via(&server.socket, 0).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
                assert!(refused.to_string().contains("log"), "{refused}");
            });
        }
    });
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let theirs = std::sync::Arc::clone(&told);
    let on_damage = OnDamage::new(move |_, range| theirs.lock().unwrap().push(range));
    let options = RestoreOptions {
        via: server.via(),
        on_damage: Some(on_damage),
        ..RestoreOptions::default()
    };
    let file = RestoreOptions { via: Via::File, ..RestoreOptions::default() };
    let mut lent = image.restore(0, &options, &mut proceed);
    if image.restore(0, &file, &mut proceed).is_ok() {
        eventually("it is tried again", || {
            lent = image.restore(0, &options, &mut proceed);
            lent.is_ok()
        });
    }
    match lent {
        Ok(restored) => {
            let error = restored.wait(PATIENCE).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let start = restored.arena().range().start + (MIB << 20) - CHUNK_BYTES;
            assert_eq!(*told.lock().unwrap(), [VirtRange::new(start, CHUNK_BYTES)]);
        }
        // Without userfaultfd.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
    }
    assert_eq!(server.metric("images"), 0);
    let log = std::fs::read_to_string(folder.0.join("log")).unwrap();
    // The log names the file and the place.
    assert!(log.contains(path.to_str().unwrap()) && log.contains("at byte"), "{log}");
}
