//! `cowslip promote` on a real, unmodified PostgreSQL while clients use it: its buffers are shared memory.
//!
//! The oracles are PostgreSQL's own (sums that each transaction of pgbench keeps equal, checksums of all blocks) and the
//! kernel's `smaps_rollup`.

mod support;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{COWSLIP, Folder, Ran, run};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// A system-wide setting that is restored at the end.
struct ShmemEnabled(String);

impl ShmemEnabled {
    /// `None` if this user may not, or the kernel has no such setting.
    fn keep() -> Option<Self> {
        let text = fs::read_to_string(SHMEM_ENABLED).ok()?;
        let before = text.split(['[', ']']).nth(1)?.to_owned();
        fs::write(SHMEM_ENABLED, &before).ok()?;
        Some(Self(before))
    }

    fn set(&self, value: &str) {
        fs::write(SHMEM_ENABLED, value).unwrap();
    }
}

impl Drop for ShmemEnabled {
    fn drop(&mut self) {
        fs::write(SHMEM_ENABLED, &self.0).expect("the setting goes back");
    }
}

/// The folder of the newest server that is installed; Debian's is not in `PATH`.
fn binaries() -> Option<PathBuf> {
    let mut found: Vec<_> = fs::read_dir("/usr/lib/postgresql").ok()?.flatten().collect();
    found.sort_by_key(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let newest = found.pop()?.path().join("bin");
    let has = |name: &str| newest.join(name).exists();
    ["postgres", "initdb", "pgbench", "psql", "pg_checksums"].into_iter().all(has).then_some(newest)
}

/// A database of its own, which only clients on this machine reach: it listens on a socket in its folder.
struct Server {
    binaries: PathBuf,
    folder: Folder,
    child: Option<Child>,
}

impl Server {
    fn new(binaries: PathBuf) -> Self {
        let folder = Folder::new("promote-postgres");
        fs::set_permissions(&folder.0, Permissions::from_mode(0o777)).unwrap();
        let server = Self { binaries, folder, child: None };
        let mut make = server.as_nobody("initdb");
        let made =
            run(make.args(["-U", "postgres", "-A", "trust", "--data-checksums", "-D", "data"]));
        assert!(made.status.success(), "{}", made.stderr);
        server
    }

    /// A command of a user without rights: PostgreSQL refuses to be root.
    fn as_nobody(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(self.binaries.join(name)).current_dir(&self.folder.0);
        command
    }

    fn start(&mut self) {
        let log = File::create(self.folder.0.join("log")).unwrap();
        let mut command = self.as_nobody("postgres");
        command.args(["-D", "data", "-c", "listen_addresses=", "-c", "fsync=off"]);
        command.arg("-k").arg(&self.folder.0);
        command.args(["-c", "huge_pages=off", "-c", "shared_buffers=64MB"]);
        self.child = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let deadline = Instant::now() + PATIENCE;
        while !self.client("psql", &["-c", "select 1"]).status.success() {
            assert!(Instant::now() < deadline, "{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.0.join("log")).unwrap_or_default()
    }

    fn client_command(&self, name: &str) -> Command {
        let mut command = Command::new(self.binaries.join(name));
        command.arg("-h").arg(&self.folder.0).args(["-U", "postgres"]);
        command
    }

    fn client(&self, name: &str, words: &[&str]) -> Ran {
        run(self.client_command(name).args(words).arg("postgres"))
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    fn huge_mib(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024 / MIB
    }

    /// Ends it as an administrator would.
    fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // A shutdown at once that ends all connections.
        let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        let _ = child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn promote(server: &Server) -> (Ran, Value) {
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--once", "--stall-budget", "100", "--json", "-", "--pid"]);
    let ran = run(command.arg(server.pid().to_string()));
    let json =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr));
    (ran, json)
}

fn after(report: &Value, field: &str) -> u64 {
    report["processes"][0]["after"][field].as_u64().unwrap() / MIB
}

/// The sums that each transaction of pgbench changes alike.
const SUMS: &str = "select (select sum(abalance) from pgbench_accounts), (select sum(bbalance) from pgbench_branches), \
                    (select sum(tbalance) from pgbench_tellers), (select sum(delta) from pgbench_history)";

#[test]
fn the_buffers_of_a_database_in_use_become_huge_where_the_kernel_may_and_the_reason_is_given_where_not()
 {
    let Some(binaries) = binaries() else {
        let declared = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
        assert!(!declared.split(',').any(|name| name == "postgres"), "it is declared");
        println!("SKIPPED: postgres: it is not installed");
        return;
    };
    let Some(setting) = ShmemEnabled::keep() else {
        println!("SKIPPED: root: the setting of shared memory is the system's");
        return;
    };
    let mut server = Server::new(binaries);

    // The kernel chooses addresses that do not fit huge pages.
    setting.set("never");
    server.start();
    let (ran, report) = promote(&server);
    if after(&report, "shmem_unaligned_bytes") > 0 {
        assert_eq!(ran.status.code(), Some(1), "{report:#}");
        assert!(ran.stderr.contains("shmem_enabled"), "{}", ran.stderr);
        assert_eq!(server.huge_mib(), 0);
    }
    server.stop();

    setting.set("advise");
    server.start();
    let filled = server.client("pgbench", &["-i", "-q", "-s", "6"]);
    assert!(filled.status.success(), "{}", filled.stderr);
    let mut load = server.client_command("pgbench");
    load.args(["-n", "-c", "4", "-T", "6", "postgres"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let load = load.spawn().unwrap();
    let (ran, report) = promote(&server);
    assert_eq!(ran.status.code(), Some(0), "{report:#}");
    assert_eq!(after(&report, "shmem_unaligned_bytes"), 0);
    assert!(server.huge_mib() >= 48, "{report:#}");
    let load = load.wait_with_output().unwrap();
    assert!(load.status.success(), "{}", String::from_utf8_lossy(&load.stderr));
    let sums = server.client("psql", &["-A", "-t", "-c", SUMS]).stdout;
    let sums: Vec<_> = sums.trim().split('|').collect();
    assert!(sums.len() == 4 && sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    server.stop();
    assert!(server.log().contains("database system is shut down"), "{}", server.log());
    let checked = run(server.as_nobody("pg_checksums").args(["--check", "-D", "data"]));
    assert!(checked.status.success(), "{}{}", checked.stdout, checked.stderr);
}
