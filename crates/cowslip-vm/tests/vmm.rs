//! The monitor of `examples/vmm`, with its own guest.

#[path = "../examples/vmm/monitor/mod.rs"]
#[allow(dead_code, reason = "its Linux is booted by tests/kernels/vmm")]
mod monitor;
#[path = "support/mod.rs"]
mod support;

use monitor::{Guest, Host, Options, boot, demonstrate};

#[test]
fn a_hundred_clones_are_exact_and_have_identities_of_their_own() {
    let (guest, memory_bytes) = (Guest::Tiny, 64 << 20);
    let options = Options { guest, disk: None, memory_bytes, clones: 100, console: false };
    let host = match Host::open().and_then(|host| boot(&host, &options, None).map(|_| host)) {
        Ok(host) => host,
        Err(why) => return support::skip("kvm", &why.to_string()),
    };
    let report = demonstrate(&host, &options).expect("clones");
    println!("{report}");
    assert_eq!(report.answers.len(), 101);
    assert!(report.is_right());
}
