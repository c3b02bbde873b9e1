//! `cowslip branch --private` and `cowslip start --private`: folders of which each copy has its own.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use support::python::{OTHER_USER, Program};
use support::{COWSLIP, Folder, Ran, run};

/// A program that works in a folder: by a relative path, an open file, a place (`O_PATH`), shared memory, a database. For each
/// line of its input it changes all of them, and prints their content.
const PROGRAM: &str = r#"
import fcntl, json, mmap, os, sqlite3, sys
os.mkdir(sys.argv[1] + '/a folder')
os.chdir(sys.argv[1] + '/a folder')
os.mkdir('inner')
log = open('log', 'ab', buffering=0)
log.write(b'begun ')
data = open('data', 'w+b', buffering=0)
data.write(b'0123456789')
data.seek(5)
fcntl.lockf(data, fcntl.LOCK_EX, 4, 2)
fcntl.flock(log, fcntl.LOCK_SH)
open('unwanted', 'w').close()
place = os.open('inner', os.O_PATH)
with open('shared', 'w+b') as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
memory[:5] = b'begun'
base = sqlite3.connect('base.db', isolation_level=None)
base.execute('create table words (word)')
print('ready', flush=True)
for word in iter(sys.stdin.readline, ''):
    word = word.strip()
    log.write(word.encode() + b' ')
    found = {'log': open('log').read(), 'data': data.read(2).decode(), 'unwanted': os.path.exists('unwanted')}
    data.write(b'!')
    locks = [line.split() for file in (data, log) for line in open(f'/proc/self/fdinfo/{file.fileno()}') if 'lock' in line]
    found['locks'] = [[words[2], words[4], words[7], words[8]] for words in locks]
    if found['unwanted']:
        os.remove('unwanted')
    with open(os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=place), 'w') as new:
        new.write(word)
    found['before'] = bytes(memory).rstrip(b'\0').decode()
    memory[:16] = word.encode().ljust(16, b'\0')
    found['shared'] = open('shared').read().rstrip('\0')
    base.execute('insert into words values (?)', (word,))
    found['words'] = [row[0] for row in base.execute('select word from words')]
    found['files'] = sorted(os.listdir('.') + os.listdir('inner'))
    os.rename('inner/new', 'moved')
    found['moved'] = open('moved').read()
    os.remove('moved')
    print(json.dumps(found), flush=True)
"#;

fn state_with(word: &str) -> Value {
    json!({
        "log": format!("begun {word} "), "data": "56", "unwanted": true, "before": "begun", "shared": word, "words": [word],
        "locks": [["POSIX", "WRITE", "2", "5"], ["FLOCK", "READ", "0", "EOF"]],
        "files": ["base.db", "data", "inner", "log", "new", "shared"], "moved": word,
    })
}

/// The names of files below a folder, and their content.
fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => all.extend(content(&entry)),
            false => _ = all.insert(entry.clone(), fs::read(entry).unwrap()),
        }
    }
    all
}

/// Branches a program. Copies read the files `N.in` of a folder.
fn branch(program: &Program, files: &Folder, user: Option<u32>, options: &[&str]) -> Ran {
    let mut command = Command::new(COWSLIP);
    command.args(["branch", &program.pid(), "--input"]).arg(files.0.join("%i.in"));
    command.arg("--output").arg(files.0.join("%i.out")).args(options);
    // A relative path is one of the command's folder.
    command.current_dir(&program.folder.0);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    run(&mut command)
}

/// A folder with the input of two copies, for a user.
fn files(user: Option<u32>) -> Folder {
    let files = Folder::new("private");
    std::os::unix::fs::chown(&files.0, user, user).unwrap();
    (0..2).for_each(|copy| {
        fs::write(files.0.join(format!("{copy}.in")), format!("copy-{copy}")).unwrap()
    });
    files
}

fn is_without_namespaces(ran: &Ran) -> bool {
    let is_refused =
        ran.stderr.contains("make a PID namespace") || ran.stderr.contains("may not mount");
    if is_refused {
        println!("SKIPPED: user namespaces: {}", ran.stderr);
    }
    is_refused
}

fn check(user: Option<u32>, folder: &str) {
    let Some(mut program) = Program::start(PROGRAM, user) else { return };
    let files = files(user);
    let before = content(&program.folder.0);
    for _ in 0..2 {
        let ran = branch(&program, &files, user, &["-n", "2", "--private", folder]);
        if user.is_some() && is_without_namespaces(&ran) {
            return;
        }
        assert!(ran.status.success(), "{}", ran.stderr);
        assert!(
            ran.stderr.contains("a folder/shared: a copy's begins as that of later"),
            "{}",
            ran.stderr
        );
        for copy in 0..2 {
            let said = fs::read_to_string(files.0.join(format!("{copy}.out"))).unwrap();
            let said: Value = serde_json::from_str(&said).unwrap();
            assert_eq!(said, state_with(&format!("copy-{copy}")));
        }
        assert_eq!(content(&program.folder.0), before, "the program's files stay");
    }
    assert_eq!(program.ask("program"), state_with("program"));
}

#[test]
fn each_copy_has_files_of_its_own() {
    check(None, "a folder");
}

#[test]
fn a_users_copies_have_files_of_their_own() {
    check(Some(OTHER_USER), "./a folder/../a folder");
}

#[test]
fn a_folder_that_cannot_be_private_is_refused_and_the_program_goes_on() {
    let Some(mut program) = Program::start(PROGRAM, None) else { return };
    let files = files(None);
    for (folder, why) in [
        ("missing", "No such file"),
        ("a folder/log", "it is no folder"),
        ("/", "name folders of files"),
        ("/dev", "is mounted in it"),
    ] {
        let ran = branch(&program, &files, None, &["--private", folder]);
        assert_eq!(ran.status.code(), Some(125), "{folder}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{folder}: {}", ran.stderr);
    }
    assert!(!files.0.join("0.out").exists(), "no copy has begun");
    assert_eq!(program.ask("program"), state_with("program"));
}

#[test]
fn a_file_that_was_deleted_is_said_to_be_shared_and_a_deleted_folder_refused() {
    let text = "import json, os, sys\n\
        os.chdir(sys.argv[1])\n\
        gone = open('gone', 'w+', buffering=1)\n\
        os.remove('gone')\n\
        print('ready', flush=True)\n\
        for word in sys.stdin:\n \
         gone.write(word)\n \
         gone.seek(0)\n \
         if word.strip() == 'leave':\n  \
          os.mkdir('left'), os.chdir('left'), os.rmdir('../left')\n \
         print(json.dumps(gone.read()), flush=True)";
    let Some(mut program) = Program::start(text, None) else { return };
    let files = files(None);
    let folder = program.folder.0.to_str().unwrap().to_owned();
    let ran = branch(&program, &files, None, &["--private", &folder]);
    assert!(ran.status.success(), "{}", ran.stderr);
    assert!(ran.stderr.contains("gone (deleted): a copy shares its content"), "{}", ran.stderr);
    program.ask("leave");
    let ran = branch(&program, &files, None, &["--private", &folder]);
    assert!(ran.stderr.contains("its working directory is"), "{}", ran.stderr);
    assert_eq!(program.ask("on").as_str().map(|text| text.ends_with("on\n")), Some(true));
}
