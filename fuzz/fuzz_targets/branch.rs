//! A message between `cowslip branch` and a program is refused, or has the same bytes when it is written again.
#![no_main]

use cowslip::raw::branch::{Reply, Request, VERSION, file_name, is_name, parse_file_name};
use cowslip_fuzz::seed;
use libfuzzer_sys::fuzz_target;

fn seeds() {
    let requests = [
        Request::Branch { version: VERSION, copies: 2 },
        Request::Release,
        Request::Variable(b"A=1"),
        Request::Copy(None),
        Request::Copy(Some(b"0.04")),
        Request::Signal(15),
    ];
    let replies = [
        Reply::Ready,
        Reply::Failed { errno: 11, started: 7 },
        Reply::Running { copy: 3, pid: 4711 },
        Reply::Ended { copy: 3, status: 0x8b },
    ];
    let messages = requests.map(Request::to_bytes).into_iter().chain(replies.map(Reply::to_bytes));
    for (number, message) in messages.enumerate() {
        seed(&number.to_string(), &message);
    }
    seed("name", b"4711-shop");
}

fuzz_target!(init: seeds(), |input: &[u8]| {
    if let Some(request) = Request::parse(input) {
        assert!(input.starts_with(&request.to_bytes()), "{request:?}");
    }
    if let Some(reply) = Reply::parse(input) {
        assert!(input.starts_with(&reply.to_bytes()), "{reply:?}");
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Some((pid, name)) = parse_file_name(text) {
        assert!(pid > 0 && name.is_none_or(is_name));
        assert_eq!(parse_file_name(&file_name(pid, name)), Some((pid, name)));
    }
});
