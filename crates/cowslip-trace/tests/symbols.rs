//! Functions have their names: in this very program, in programs with separate debug information, and in code
//! that a program generated.

mod support;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs};

use cowslip_sys::procfs;
use cowslip_sys::units::VirtRange;
use cowslip_trace::analysis::{Analyser, Frame, StackSums, Sums};
use cowslip_trace::attribute::FaultKind;
use cowslip_trace::model::{Event, EventKind, Fault, Header, Map};
use cowslip_trace::symbols::Names;
use support::skip;

#[inline(never)]
fn a_function_to_be_found() -> usize {
    std::hint::black_box(7)
}

/// A place in a file.
fn place(file: &Path, offset_bytes: u64) -> Frame {
    let module = Some(file.to_str().unwrap().into());
    Frame { module, offset_bytes, function: None }
}

/// A place in this process's own files.
fn own_place(ip: u64) -> Frame {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let map = procfs::mappings(&maps).find(|mapping| mapping.range.contains(ip as usize)).unwrap();
    let offset_bytes = map.offset_bytes + ip - map.range.start as u64;
    place(Path::new(map.name), offset_bytes)
}

#[test]
fn functions_have_their_names() {
    assert_eq!(a_function_to_be_found(), 7);
    let frame = [own_place(a_function_to_be_found as *const () as u64)];
    let of = |began_unix_seconds| Header { began_unix_seconds, ..Header::default() };
    let mut now = Names::new(&of(u64::from(u32::MAX)));
    let name = now.functions(&frame).last().unwrap().clone();
    assert!(name.contains("a_function_to_be_found"), "{name}");
    assert_eq!(now.functions(&frame).last(), Some(&name), "and again");
    // A file younger than the trace may be another program.
    let name = Names::new(&of(1)).functions(&frame)[0].clone();
    assert!(name.starts_with("symbols-") && name.contains("+0x"), "{name}");
}

/// A folder that is removed when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("cowslip-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a tool of the compiler's; `None`, reported and counted, where it is missing or fails.
fn tool(folder: &Folder, command: &str) -> Option<String> {
    let mut words = command.split(' ');
    let ran = Command::new(words.next().unwrap()).args(words).current_dir(&folder.0).output();
    match ran {
        Ok(ran) if ran.status.success() => Some(String::from_utf8(ran.stdout).unwrap()),
        Ok(ran) => {
            skip("binutils", &format!("{command}: {}", String::from_utf8_lossy(&ran.stderr)));
            None
        }
        Err(error) => {
            skip("binutils", &format!("{command}: {error}"));
            None
        }
    }
}

/// A library with an exported function and one that only its symbols name; returns the places of both in the
/// file.
fn library(folder: &Folder) -> Option<[u64; 2]> {
    let source = "__attribute__((noinline)) static int inner_function(int x) { return x * 7 + 1; }\n\
                  int exported_function(int x) { return inner_function(x) + 3; }\n";
    fs::write(folder.0.join("it.c"), source).unwrap();
    tool(folder, "cc -O1 -g -shared -fPIC -o it.so it.c")?;
    let all = tool(folder, "nm it.so")?;
    let address = |name: &str| {
        let line = all.lines().find(|line| line.ends_with(name)).unwrap();
        u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap()
    };
    // The loader's segments: code has the same offset from the start in the file and in memory.
    Some(["exported_function", "inner_function"].map(address))
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// The names at places in a file.
fn names(file: &Path, places: [u64; 2], began_unix_ns: u64) -> [String; 2] {
    let mut names = Names::new(&Header { began_unix_ns, ..Header::default() });
    places.map(|at| names.functions(&[place(file, at + 1)]).last().unwrap().to_string())
}

#[test]
fn functions_that_the_compiler_put_into_others_are_named() {
    let folder = Folder::new("inlined");
    let inline = "__attribute__((always_inline)) static inline void";
    let source = format!(
        "{inline} innermost(volatile int *at) {{ at[0] = 7; at[1] = 8; }}\n\
         {inline} between(volatile int *at) {{ innermost(at); }}\n\
         void outermost(volatile int *at) {{ between(at); }}\n"
    );
    fs::write(folder.0.join("it.c"), source).unwrap();
    let Some(_) = tool(&folder, "cc -O2 -g -shared -fPIC -o it.so it.c") else { return };
    let Some(all) = tool(&folder, "nm it.so") else { return };
    let line = all.lines().find(|line| line.ends_with("outermost")).unwrap();
    let at = u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap();
    let mut names = Names::new(&Header { began_unix_ns: now_ns(), ..Header::default() });
    let file = folder.0.join("it.so");
    // Some instruction of the function, whose first may be a landing pad.
    let functions = (0..12)
        .map(|byte| names.functions(&[place(&file, at + byte)]))
        .max_by_key(|stack| stack.len());
    let functions: Vec<String> = functions.unwrap().iter().map(|name| name.to_string()).collect();
    assert_eq!(functions, ["innermost", "between", "outermost"]);
}

/// A function inside a function of the same name, put into it, looks as one that the compiler split and put together.
#[test]
fn a_function_is_named_once_at_one_place() {
    let folder = Folder::new("named-once");
    let source = "void doubled(volatile int *at) {\n\
                  inline __attribute__((always_inline)) void doubled(int x) { at[0] = x; at[1] = x + 1; }\n\
                  doubled(at[2]); }\n";
    fs::write(folder.0.join("it.c"), source).unwrap();
    let Some(_) = tool(&folder, "gcc -O2 -g -shared -fPIC -o it.so it.c") else { return };
    let Some(all) = tool(&folder, "nm it.so") else { return };
    let line = all.lines().find(|line| line.ends_with(" doubled")).unwrap();
    let at = u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap();
    let mut names = Names::new(&Header { began_unix_ns: now_ns(), ..Header::default() });
    let file = folder.0.join("it.so");
    for byte in 0..12 {
        let functions = names.functions(&[place(&file, at + byte)]);
        assert_eq!(functions.iter().map(|name| &**name).collect::<Vec<_>>(), ["doubled"]);
    }
}

const NAMES: [&str; 2] = ["exported_function", "inner_function"];

#[test]
fn debug_information_beside_the_program_is_read_compressed_or_not() {
    for compression in ["none", "zlib", "zstd"] {
        let folder = Folder::new(&format!("debug-{compression}"));
        let Some(places) = library(&folder) else { return };
        let keep = format!("objcopy --only-keep-debug --compress-debug-sections={compression}");
        for command in [
            &format!("{keep} it.so it.debug")[..],
            "strip it.so",
            "objcopy --add-gnu-debuglink=it.debug it.so",
        ] {
            if tool(&folder, command).is_none() {
                return;
            }
        }
        let file = folder.0.join("it.so");
        assert_eq!(names(&file, places, now_ns()), NAMES, "{compression}");
        // Exported functions have names even if the debug information is damaged or missing.
        fs::write(folder.0.join("it.debug"), "damaged").unwrap();
        let [exported, inner] = names(&file, places, now_ns());
        assert_eq!(exported, NAMES[0], "{compression}");
        assert!(inner.starts_with("it.so+0x"), "{inner}");
        fs::remove_file(folder.0.join("it.debug")).unwrap();
        assert_eq!(names(&file, places, now_ns())[0], NAMES[0], "{compression}");
    }
}

#[test]
fn a_program_built_in_the_second_in_which_the_trace_began_has_its_names() {
    let folder = Folder::new("second");
    let Some(places) = library(&folder) else { return };
    let file = folder.0.join("it.so");
    let began_ns = now_ns();
    let built = fs::metadata(&file).unwrap().modified().unwrap();
    assert!(built <= UNIX_EPOCH + Duration::from_nanos(began_ns), "clocks disagree");
    assert_eq!(names(&file, places, began_ns), NAMES);
    let built_ns = built.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert_ne!(names(&file, places, built_ns - 1), NAMES, "it was built a moment later");
    // Some imported traces have only the second.
    let began_unix_seconds = built_ns / 1_000_000_000;
    let of_second = Header { began_unix_seconds, ..Header::default() };
    assert!(of_second.began() > built);
}

#[test]
fn a_function_is_one_row_wherever_it_faults() {
    let folder = Folder::new("rows");
    let Some(places) = library(&folder) else { return };
    let header = Header { began_unix_ns: now_ns(), ..Header::default() };
    let mut analyser = Analyser::new(&header);
    let mut happen = |what| {
        let event = Event { time_ns: 0, pid: 1, tid: 1, what };
        analyser.observe(&event, |_| &[]);
    };
    let (range, protection, flags) = (VirtRange::new(1 << 30, 1 << 20), 5, 2);
    let name = Some(folder.0.join("it.so").to_str().unwrap().into());
    happen(EventKind::Map(Map { range, protection, flags, name, ..Map::default() }));
    for fault in 0..100 {
        // Instructions at different places in each function.
        let ip = (1 << 30) + places[fault % 4 / 3] + 1 + fault as u64 / 50;
        happen(EventKind::Fault(Fault::at(fault as u64 * 4096, ip)));
    }
    let analysis = analyser.finish(None);
    assert_eq!(analysis.stacks.len(), 4);
    let mut names = Names::new(&header);
    let rows = names.by_function(&analysis.stacks, 5);
    let told: Vec<_> = rows.iter().map(|row| (&*row.functions[0], row.sums.faults())).collect();
    assert_eq!(told, [(NAMES[0], 75), (NAMES[1], 25)]);
}

#[test]
fn stacks_that_differ_beyond_what_is_shown_are_one_row() {
    let mut sums = Sums::default();
    sums.add(&Fault::at(0, 0), FaultKind::FirstTouch);
    let stack = |modules: &[&str]| {
        let frame = |module: &&str| {
            let module = Some((*module).into());
            Frame { module, offset_bytes: 0, function: None }
        };
        StackSums { frames: modules.iter().map(frame).collect(), sums }
    };
    let stacks = [stack(&["[a]", "[b]", "[c]"]), stack(&["[a]", "[b]", "[d]"]), stack(&["[a]"])];
    let rows = Names::default().by_function(&stacks, 2);
    let told: Vec<_> =
        rows.iter().map(|row| (row.functions.len(), row.has_more, row.sums.faults())).collect();
    assert_eq!(told, [(2, true, 2), (1, false, 1)]);
}

/// A server of debug information, until it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Prints the functions at some places, by the environment's servers.
#[test]
#[ignore = "a part of another test"]
fn the_places() {
    let Ok(file) = env::var("COWSLIP_FILE") else { return };
    let at: u64 = env::var("COWSLIP_PLACE").unwrap().parse().unwrap();
    let mut names = Names::new(&Header { began_unix_ns: now_ns(), ..Header::default() });
    // Some instruction of the function, whose first may be a landing pad.
    let places = (0..12).map(|byte| names.functions(&[place(Path::new(&file), at + byte)]));
    println!("FUNCTIONS {}", places.max_by_key(|stack| stack.len()).unwrap().join(" "));
}

/// True in a network of loopback alone, as a debuginfod listens at every address. Otherwise runs the test of this name
/// there.
fn has_own_network(name: &str) -> bool {
    const MARK: &str = "COWSLIP_OWN_NETWORK";
    if env::var_os(MARK).is_some() {
        return true;
    }
    let mut test = Command::new("unshare");
    test.args([
        "--map-root-user",
        "--net",
        "sh",
        "-c",
        "ip link set lo up || exit 77; exec \"$@\"",
        "sh",
    ]);
    test.arg(env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]).env(MARK, "1");
    match test.status().ok().and_then(|status| status.code()) {
        Some(0) => {}
        None | Some(1 | 77) => skip("debuginfod", "no network of its own (unshare, ip)"),
        Some(code) => panic!("exit code {code}"),
    }
    false
}

#[test]
fn debug_information_comes_from_a_server_where_one_is_named() {
    if !has_own_network("debug_information_comes_from_a_server_where_one_is_named") {
        return;
    }
    let folder = Folder::new("server");
    if tool(&folder, "debuginfod --version").is_none() {
        return;
    }
    let inline = "__attribute__((always_inline)) static inline void";
    let source = format!(
        "{inline} innermost(volatile int *at) {{ at[0] = 7; at[1] = 8; }}\n\
         __attribute__((visibility(\"hidden\"))) void outermost(volatile int *at) {{ innermost(at); }}\n"
    );
    fs::write(folder.0.join("it.c"), source).unwrap();
    fs::create_dir(folder.0.join("served")).unwrap();
    let Some(_) = tool(&folder, "cc -O2 -g -shared -fPIC -Wl,--build-id -o it.so it.c") else {
        return;
    };
    let all = tool(&folder, "nm it.so").unwrap();
    let at = all.lines().find(|line| line.ends_with("outermost")).unwrap();
    let at = u64::from_str_radix(at.split_whitespace().next().unwrap(), 16).unwrap();
    let notes = tool(&folder, "readelf -n it.so").unwrap();
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).unwrap();
    tool(&folder, "objcopy --only-keep-debug it.so served/it.debug").unwrap();
    tool(&folder, "strip it.so").unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let mut server = Command::new("debuginfod");
    server.args(["-F", "-d", ":memory:", "-p", &port.to_string(), "served"]);
    server.current_dir(&folder.0).env_remove("DEBUGINFOD_URLS");
    server.stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Server(server.spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    for round in 0.. {
        // A cache keeps that there was none.
        let cache = folder.0.join(format!("cache-{round}"));
        let mut client = Command::new("debuginfod-find");
        client.args(["debuginfo", id]).env("DEBUGINFOD_URLS", &url);
        if client.env("DEBUGINFOD_CACHE_PATH", cache).output().unwrap().status.success() {
            break;
        }
        assert!(Instant::now() < deadline, "the server does not have it");
    }
    let functions = |urls: &str| {
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", "the_places", "--ignored", "--nocapture"]);
        test.env("COWSLIP_FILE", folder.0.join("it.so")).env("COWSLIP_PLACE", at.to_string());
        test.env("DEBUGINFOD_URLS", urls).env("DEBUGINFOD_CACHE_PATH", folder.0.join("cache"));
        let ran = String::from_utf8(test.output().unwrap().stdout).unwrap();
        let (_, told) = ran.split_once("FUNCTIONS ").expect(&ran);
        told.lines().next().unwrap().to_owned()
    };
    assert!(functions("").starts_with("it.so+0x"), "{}", functions(""));
    assert_eq!(functions(&url), "innermost outermost");
}
