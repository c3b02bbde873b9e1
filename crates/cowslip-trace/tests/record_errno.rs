//! Recordings under refusals by the kernel, each of them injected.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cowslip_sys::Errno;
use cowslip_sys::failpoints::{Op, fail};
use cowslip_sys::units::ByteCount;
use cowslip_trace::record::{Error, ErrorKind, Options, Recorder, Stacks, Subject};

/// Failpoints apply to the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static SEAM: Mutex<()> = Mutex::new(());
    SEAM.lock().unwrap_or_else(PoisonError::into_inner)
}

fn attach(options: &Options) -> Result<Recorder, Error> {
    Recorder::attach(Subject::Processes(vec![std::process::id() as i32]), options)
}

#[test]
fn who_may_not_open_events_is_told_what_permits_it() {
    let _alone = alone();
    let _refusal = fail(Op::PerfOpen, 0, 100, Errno::ACCESS);
    let error = attach(&Options::default()).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Denied, Some(13)));
    assert!(error.to_string().contains("run `sysctl kernel.perf_event_paranoid=2`"), "{error}");
}

/// After a refusal at any event, it reports an error or records without the event, and closes everything it
/// opened.
#[test]
fn whichever_event_is_refused_there_is_a_trace_or_a_reason() {
    let _alone = alone();
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    let mut said = Vec::new();
    for (errno, times) in [(Errno::MFILE, 1), (Errno::ACCESS, 1), (Errno::SRCH, 1000)] {
        for pass in (0..400).step_by(13) {
            let refusal = fail(Op::PerfOpen, pass, times, errno);
            let options = Options { stacks: Stacks::None, ..Options::default() };
            match attach(&options) {
                Ok(recorder) => {
                    // Without an event, the header lists the missing events.
                    let is_whole = recorder.header().unseen.len() == 1;
                    assert!(!is_whole || pass > 0, "{errno} at {pass}: {:?}", recorder.header());
                    let is_over = !refusal.is_spent();
                    drop(recorder);
                    if is_over {
                        break;
                    }
                }
                Err(error) => said.push(error.to_string()),
            }
        }
        assert_eq!(files(), before, "{errno}");
    }
    for wanted in ["ulimit", "as root", "attach to process"] {
        assert!(said.iter().any(|text| text.contains(wanted)), "{wanted}: {said:#?}");
    }
}

#[test]
fn rings_are_as_large_as_is_permitted() {
    let _alone = alone();
    let options = Options::default();
    let whole = attach(&options).unwrap().ring();
    let refusal = fail(Op::PerfMap, 0, 2, Errno::PERM);
    assert_eq!(attach(&options).unwrap().ring(), ByteCount(whole.0 / 4));
    assert!(refusal.is_spent());
    drop(refusal);

    let _refusal = fail(Op::PerfMap, 0, 1, Errno::PERM);
    let error = attach(&Options { ring: Some(ByteCount::mib(1)), ..options }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(
        error.to_string().contains("1 MiB") && error.to_string().contains("perf_event_mlock_kb")
    );
}

#[test]
fn a_ring_that_cannot_be_shared_is_an_error() {
    let _alone = alone();
    let _refusal = fail(Op::PerfSetOutput, 0, 1, Errno::INVAL);
    let error = attach(&Options::default()).unwrap_err();
    assert!(error.to_string().contains("share the ring of thread"), "{error}");
}
