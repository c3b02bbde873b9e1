//! The threads that run all asynchronous work.

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;

use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::process::BlockedSignals;
use futures_util::future::{Either, select};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::attend::broken_off;

/// The threads wait for sockets, and copy received bytes.
const THREADS: usize = 2;

static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();

/// The runtime of this process.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    let started = RUNTIME.get_or_init(|| {
        // A provider that the program has chosen is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // The threads inherit a mask that blocks every signal: handlers are the program's.
        let _blocked = BlockedSignals::enter();
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("cowslip-remote").enable_all().build().ok()
    });
    started.as_ref().ok_or_else(|| {
        Error::new(ErrorKind::OutOfMemory, "start the threads that talk to object stores")
            .because("no thread can be started")
    })
}

/// Runs `future` to its end, unless `cancel` ends it; for threads that are not the runtime's.
pub(crate) fn block_on<T, E: From<Error>>(
    cancel: &CancellationToken,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    runtime()?.block_on(async {
        match select(pin!(future), pin!(cancel.cancelled())).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Err(broken_off().into()),
        }
    })
}
