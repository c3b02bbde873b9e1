//! `cowslip checkpoint` and `cowslip restore` of processes.

mod support;

use std::collections::HashSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cowslip_criu::{About, FolderOptions, NewCheckpoint};
use support::checkpoint::{Server, criu, keys, restore, restore_with};
use support::{COWSLIP, Folder, run};

#[test]
fn a_process_goes_on_and_comes_back_with_its_threads_again_and_again() {
    let Some(criu) = criu() else { return };
    let Some(mut server) = Server::start() else { return };
    let checkpoint = server.folder.0.join("kept");
    for round in 0..3 {
        let before = server.ask();
        let ran = server.checkpoint(&checkpoint, &criu);
        assert!(ran.status.success(), "round {round}: {}", ran.stderr);
        assert!(ran.stdout.contains("5 threads"), "{}", ran.stdout);
        let after = server.ask();
        assert_eq!((after.left, after.live_threads, after.is_memory_right), (0, 4, true));
        let children = format!("/proc/{0}/task/{0}/children", server.pid);
        assert_eq!(fs::read_to_string(children).unwrap(), "", "no holder stays");
        if round == 0 {
            assert!(before.has_peer && after.has_peer);
            let again = server.checkpoint(&checkpoint, &criu);
            assert_eq!(again.status.code(), Some(2), "{}", again.stderr);
            let taken = restore(&checkpoint, &criu);
            assert_eq!(taken.status.code(), Some(70), "{}", taken.stderr);
            assert!(taken.stderr.contains(&server.pid.to_string()), "{}", taken.stderr);
        }
        server.kill();
        let ran = restore(&checkpoint, &criu);
        assert!(ran.status.success(), "round {round}: {}", ran.stderr);
        let restored = server.ask();
        assert_eq!((restored.left, restored.live_threads, restored.is_memory_right), (0, 4, true));
        assert!(before.added < restored.added, "{before:?}, {restored:?}");
        assert!(!restored.has_peer);
        // The offset is that of the instant, and this answer's line.
        assert_eq!(restored.log_bytes, before.log_bytes + 6, "{after:?}");
        fs::remove_dir_all(&checkpoint).unwrap();
        assert!(server.ask().added > restored.added, "its threads go on");
    }
    let names = fs::read_dir(&server.folder.0).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["log", "peer", "port"], "nothing else stays");
    server.kill();
}

#[test]
fn a_program_ends_with_its_checkpoint_and_runs_again_with_all_its_memory() {
    let Some(criu) = criu() else { return };
    let Some(mut server) = Server::start() else { return };
    let before = server.ask();
    let kept = server.folder.0.join("kept");
    let ran = server.checkpoint_with(&kept, &criu, &["--stop"]);
    assert!(ran.status.success(), "{}", ran.stderr);
    assert!(ran.stdout.contains("it has ended"), "{}", ran.stdout);
    let ended = server.child.take().unwrap().wait().unwrap();
    assert_eq!(ended.signal(), Some(9), "{ended}");
    let ran =
        run(Command::new(COWSLIP).args(["restore", "--eager"]).arg(&kept).arg("--criu").arg(&criu));
    assert!(ran.status.success(), "{}", ran.stderr);
    assert!(ran.stdout.contains("pages came before"), "{}", ran.stdout);
    let restored = server.ask();
    assert_eq!((restored.left, restored.live_threads, restored.is_memory_right), (0, 4, true));
    assert_eq!(restored.log_bytes, before.log_bytes + 6);
    assert!(server.ask().added > restored.added, "its threads go on");
    server.kill();
}

#[test]
fn a_program_under_cowslip_run_comes_back_with_its_arena_again_and_again() {
    let starter = [COWSLIP, "run", "--backing", "base", "--threshold", "64K", "--"];
    let Some(criu) = criu() else { return };
    let Some(mut server) = Server::start_by(&starter) else { return };
    let mut last = server.ask();
    for round in 0..4 {
        let kept = server.folder.0.join(format!("round-{round}"));
        let ran = server.checkpoint(&kept, &criu);
        assert!(ran.status.success(), "round {round}: {}", ran.stderr);
        let later = server.ask();
        assert!(later.added > last.added, "it goes on");
        server.kill();
        let ran = restore(&kept, &criu);
        assert!(ran.status.success(), "round {round}: {}", ran.stderr);
        fs::remove_dir_all(&kept).unwrap();
        last = server.ask();
        assert_eq!((last.left, last.live_threads, last.is_memory_right), (0, 4, true));
        let arena = fs::read_to_string(format!("/proc/{}/maps", server.pid)).unwrap();
        assert!(arena.contains("/memfd:cowslip (deleted)"), "{arena}");
    }
    server.kill();
}

#[test]
fn a_program_whose_arena_cannot_be_looked_up_is_refused() {
    let starter = [COWSLIP, "run", "--backing", "thp", "--threshold", "64K", "--"];
    let Some(server) = Server::start_by(&starter) else { return };
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid)).unwrap();
    if !maps.contains("/#") {
        println!("SKIPPED: huge: no arena on huge pages here");
        return;
    }
    let liar = liar(&server.folder);
    let ran = server.checkpoint(&server.folder.0.join("kept"), &liar);
    assert_eq!(ran.status.code(), Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("--backing base"), "{}", ran.stderr);
}

/// A program that says a version of CRIU, and dumps nothing.
fn liar(folder: &Folder) -> PathBuf {
    let liar = folder.0.join("criu");
    fs::write(&liar, "#!/bin/sh\n[ $1 = --version ] && echo Version: 4.2 && exit\nexit 7\n")
        .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&liar, mode).unwrap();
    liar
}

#[test]
fn a_checkpoint_that_fails_leaves_nothing_and_the_process_goes_on() {
    let Some(server) = Server::start() else { return };
    let folder = server.folder.0.join("kept");
    let missing = server.checkpoint(&folder, Path::new("/nonexistent/criu"));
    assert_eq!(missing.status.code(), Some(3), "{}", missing.stderr);
    assert!(missing.stderr.contains("--criu"), "{}", missing.stderr);
    let liar = liar(&server.folder);
    for options in [&[][..], &["--stop"]] {
        let failed = server.checkpoint_with(&folder, &liar, options);
        assert_eq!(failed.status.code(), Some(3), "{}", failed.stderr);
        assert!(failed.stderr.contains("exit status: 7"), "{}", failed.stderr);
        let children = format!("/proc/{0}/task/{0}/children", server.pid);
        assert_eq!(fs::read_to_string(children).unwrap(), "", "no holder stays");
    }
    let kept = fs::read_dir(&server.folder.0).unwrap().count();
    assert_eq!(kept, 4, "the log, the peer, the port and the program");
    let first = server.ask();
    assert_eq!((first.left, first.live_threads), (0, 4));
    assert!(server.ask().added > first.added);
}

#[test]
fn a_folder_that_is_no_checkpoint_is_refused() {
    let folder = Folder::new("no-checkpoint");
    let refused = |code| {
        let ran = restore(&folder.0, Path::new("criu"));
        assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains("process.json"), "{}", ran.stderr);
    };
    refused(2);
    for wrong in [
        "",
        "{}",
        r#"{"schema":"cowslip.process/9","pid":9,"threads":[9],"name":"","pause_ns":0,"criu":""}"#,
        r#"{"schema":"cowslip.process/1","pid":1,"threads":[1],"name":"","pause_ns":0,"criu":""}"#,
        r#"{"schema":"cowslip.process/1","pid":9,"threads":[8],"name":"","pause_ns":0,"criu":""}"#,
    ] {
        fs::write(folder.0.join("process.json"), wrong).unwrap();
        refused(6);
    }
}

#[test]
fn a_process_comes_back_from_an_encrypted_checkpoint_and_its_bases() {
    let Some(criu) = criu() else { return };
    let Some(mut server) = Server::start() else { return };
    let [key, wrong] = keys(&server.folder);
    let days = [0, 1, 2].map(|day| server.folder.0.join(format!("day-{day}")));
    let mut last = server.ask();
    for (day, folder) in days.iter().enumerate() {
        let base = day.checked_sub(1).map(|before| days[before].to_str().unwrap());
        let mut options: Vec<&str> = base.iter().flat_map(|base| ["--base", base]).collect();
        // The first one is in plain.
        if day > 0 {
            options.extend(["--key-file", &key]);
        }
        options.extend(["--json", "-"]);
        let ran = server.checkpoint_with(folder, &criu, &options);
        assert!(ran.status.success(), "day {day}: {}", ran.stderr);
        let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let [all, own] =
            ["memory_bytes", "own_memory_bytes"].map(|field| told[field].as_u64().unwrap());
        assert!(all > 8 << 20, "{told}");
        assert!(if day == 0 { own == all } else { own < all / 2 }, "{told}");
        let before = server.ask();
        server.kill();
        if day > 0 {
            for (options, code) in [(&[][..], 2), (&["--identity", &wrong], 4)] {
                let refused = restore_with(folder, &criu, options);
                assert_eq!(refused.status.code(), Some(code), "{}", refused.stderr);
            }
        }
        // The restored process is checkpointed again.
        let ran = restore_with(folder, &criu, &["--identity", &key]);
        assert!(ran.status.success(), "day {day}: {}", ran.stderr);
        let restored = server.ask();
        assert_eq!((restored.left, restored.live_threads, restored.is_memory_right), (0, 4, true));
        assert!(restored.added > last.added, "{last:?}, {before:?}, {restored:?}");
        last = restored;
    }
    server.kill();
    let moved = server.folder.0.join("moved");
    fs::rename(&days[0], &moved).unwrap();
    let missing = restore_with(&days[2], &criu, &["--identity", &key]);
    assert_eq!(missing.status.code(), Some(6), "{}", missing.stderr);
    assert!(missing.stderr.contains("--base"), "{}", missing.stderr);
    let options = ["--identity", &key, "--base", moved.to_str().unwrap()];
    let ran = restore_with(&days[2], &criu, &options);
    assert!(ran.status.success(), "{}", ran.stderr);
    assert!(server.ask().is_memory_right);
    server.kill();
}

/// Keeps a process of one page.
fn keep(folder: &Path, options: &FolderOptions) {
    // A number that no process has here.
    let pid = (1 << 22) - 1;
    let new = NewCheckpoint::create(folder, options).unwrap();
    let mut pagemap = [0x5456_4319_u32, 0x5608_4025].map(u32::to_le_bytes).concat();
    for message in [&[0x08, 1][..], &[0x08, 0x80, 0x80, 0x80, 2, 0x10, 1, 0x20, 6]] {
        pagemap.extend((message.len() as u32).to_le_bytes());
        pagemap.extend(message);
    }
    fs::write(new.dump().join(format!("pagemap-{pid}.img")), pagemap).unwrap();
    fs::write(new.dump().join("pages-1.img"), [7; 4096]).unwrap();
    fs::write(new.dump().join("core.img"), "registers").unwrap();
    let (name, criu) = ("small".into(), "4.2".into());
    let about = About { pid, threads: vec![pid], name, pause_ns: 1, criu };
    new.finish(&about, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
}

#[test]
fn decrypted_files_are_in_memory_and_gone_with_the_next_command() {
    let folder = Folder::new("decrypted");
    let [key, wrong] = keys(&folder);
    let kept = folder.0.join("kept");
    let mut options = FolderOptions::default();
    options.keys.add_key_file(Path::new(&key)).unwrap();
    keep(&kept, &options);
    // A program that notes its arguments, and restores nothing. It may end the command.
    let criu = folder.0.join("criu");
    let script = format!(
        "#!/bin/sh\ncase $1 in\n--version) echo Version: 4.2;;\nlazy-pages) echo; exec cat;;\n\
         restore) cd {}; rm -rf seen; cp -r $3 seen; echo $3 > place; [ -e die ] && kill -9 $PPID; exit 7;;\nesac\n",
        folder.0.display()
    );
    fs::write(&criu, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&criu, mode).unwrap();
    for (options, code, word) in [
        (&[][..], 2, "--identity"),
        (&["--identity", &wrong], 4, "other keys"),
        (&["--identity", "/nonexistent"], 2, "/nonexistent"),
        (&["--key-file", &key], 3, "exit status: 7"),
    ] {
        let ran = restore_with(&kept, &criu, options);
        assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
    let place = || PathBuf::from(fs::read_to_string(folder.0.join("place")).unwrap().trim());
    assert!(place().starts_with("/dev/shm") && !place().exists(), "{}", place().display());
    assert_eq!(fs::read_to_string(folder.0.join("seen/core.img")).unwrap(), "registers");
    fs::write(folder.0.join("die"), "").unwrap();
    let killed = restore_with(&kept, &criu, &["--identity", &key]);
    assert_eq!(killed.status.code(), None, "{}", killed.stderr);
    let left = place();
    assert!(left.exists(), "the kernel had no time for more");
    fs::remove_file(folder.0.join("die")).unwrap();
    let next = restore_with(&kept, &criu, &["--identity", &key]);
    assert_eq!(next.status.code(), Some(3), "{}", next.stderr);
    assert!(!left.exists() && !place().exists());
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let folder = Folder::new("refused");
    let [key, _] = keys(&folder);
    let pid = std::process::id().to_string();
    let refused = |words: &[&str], word: &str| {
        let ran = run(Command::new(COWSLIP).args(words));
        assert_eq!(ran.status.code(), Some(2), "{words:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(word), "{words:?}: {}", ran.stderr);
    };
    let new = folder.0.join("new");
    let checkpoint = ["checkpoint", &pid, "-o", new.to_str().unwrap()];
    for (options, word) in [
        (["--recipient", "age1wrong"], "age1wrong"),
        (["--recipients-file", &key], "line 1"),
        (["--key-file", "/nonexistent"], "/nonexistent"),
    ] {
        refused(&[&checkpoint[..], &options].concat(), word);
    }
    let file = folder.0.join("file");
    fs::write(&file, "").unwrap();
    refused(&["restore", file.to_str().unwrap(), "--identity", &key], "--identity");
    assert!(!new.exists());
}

/// A server that answers with random numbers of OpenSSL.
const DRAWING: &str = r#"
import os, socket, ssl, sys
folder = sys.argv[1]
ssl.RAND_bytes(16)
peer = socket.socket(socket.AF_UNIX)
peer.connect(folder + '/peer')
server = socket.create_server(('127.0.0.1', 0))
with open(folder + '/port.new', 'w') as port:
    port.write(str(server.getsockname()[1]))
os.rename(folder + '/port.new', folder + '/port')
while True:
    client, _ = server.accept()
    client.sendall(ssl.RAND_bytes(16).hex().encode())
    client.close()
"#;

#[test]
fn each_restore_draws_random_numbers_of_its_own() {
    let Some(criu) = criu() else { return };
    let Some(mut server) = Server::start_program(&[], DRAWING) else { return };
    let [first, second] = ["first", "second"].map(|name| server.folder.0.join(name));
    let ran = server.checkpoint(&first, &criu);
    assert!(ran.status.success(), "{}", ran.stderr);
    let mut drawn = vec![server.answer()];
    for kept in [&first, &first, &second, &second] {
        server.kill();
        let ran = restore(kept, &criu);
        assert!(ran.status.success(), "{}", ran.stderr);
        if !second.exists() {
            // The restored process has not drawn any yet.
            let ran = server.checkpoint(&second, &criu);
            assert!(ran.status.success(), "{}", ran.stderr);
        }
        drawn.extend([server.answer(), server.answer()]);
    }
    server.kill();
    let different: HashSet<_> = drawn.iter().collect();
    assert_eq!(different.len(), drawn.len(), "{drawn:#?}");
}
