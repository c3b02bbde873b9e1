//! Random numbers of OpenSSL in the copies of `cowslip branch`: each copy draws its own.

mod support;

use std::collections::HashSet;
use std::fs;
use std::process::Command;

use serde_json::Value;
use support::python::{PYTHON, Program};
use support::{COWSLIP, run};

const COPIES: usize = 8;

/// A program that has drawn some before, and draws again for a line of its input: itself, and in a child.
const IN_PYTHON: &str = r#"
import json, os, ssl, sys
ssl.RAND_bytes(16)
print('ready', flush=True)
def of_child():
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, ssl.RAND_bytes(16))
        os._exit(0)
    os.wait()
    return os.read(read, 16)
while sys.stdin.readline():
    drawn = [ssl.RAND_bytes(16), of_child(), ssl.RAND_bytes(16)]
    print(json.dumps({'pid': os.getpid(), 'drawn': [number.hex() for number in drawn]}), flush=True)
"#;

/// A program for Node, whose OpenSSL is inside of it or a library.
const IN_NODE: &str = r#"
const crypto = require('crypto');
const draw = () => crypto.randomBytes(16).toString('hex');
draw();
console.log('ready');
process.stdin.on('data', () => console.log(JSON.stringify({pid: process.pid, drawn: [draw(), draw()]})));
"#;

/// Branches the program, and compares the numbers that its copies and itself have drawn.
fn check(program: &mut Program, options: &[&str]) {
    let file = |name: &str| program.folder.0.join(name);
    (0..COPIES).for_each(|copy| fs::write(file(&format!("{copy}.in")), "draw\n").unwrap());
    let mut command = Command::new(COWSLIP);
    command.args(["branch", &program.pid(), "-n", &COPIES.to_string()]).args(options);
    let ran = run(command.arg("--input").arg(file("%i.in")).arg("--output").arg(file("%i.out")));
    assert!(ran.status.success(), "{}", ran.stderr);
    let answer = |copy| fs::read_to_string(file(&format!("{copy}.out"))).unwrap();
    let answers = (0..COPIES).map(|copy| serde_json::from_str::<Value>(&answer(copy)).unwrap());
    let mut answers: Vec<_> = answers.collect();
    answers.push(program.ask("draw"));
    let drawn = answers.iter().flat_map(|answer| answer["drawn"].as_array().unwrap());
    let drawn: Vec<_> = drawn.map(|number| number.as_str().unwrap()).collect();
    let different: HashSet<_> = drawn.iter().collect();
    assert_eq!(different.len(), drawn.len(), "{drawn:#?}");
    for answer in &answers {
        assert_eq!(
            answer["pid"],
            program.child.id(),
            "the number that the program itself asks for"
        );
    }
}

#[test]
fn copies_of_a_python_draw_their_own() {
    let Some(mut program) = Program::start(IN_PYTHON, None) else { return };
    check(&mut program, &[]);
}

#[test]
fn copies_under_cowslip_run_draw_their_own() {
    let starter = [COWSLIP, "run", "--threshold", "64K", "--", PYTHON, "-c"];
    let Some(mut program) = Program::start_by(&starter, IN_PYTHON, None) else { return };
    check(&mut program, &["--running"]);
}

#[test]
fn copies_of_a_node_draw_their_own() {
    if Command::new("node").arg("--version").output().is_err() {
        println!("SKIPPED: node is not there");
        return;
    }
    let Some(mut program) = Program::start_by(&["node", "-e"], IN_NODE, None) else { return };
    check(&mut program, &[]);
}
