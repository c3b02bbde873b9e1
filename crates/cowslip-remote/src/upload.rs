//! An image, or another file, on its way into a store.
//!
//! ```text
//!  write_at ─▶ parts being filled ──full──▶ in flight, eight at most ──▶ done
//!              part 0, with an image's header, stays until commit ───▶ last, then complete: it is visible
//!  dropped without commit: what is in flight is ended, the upload aborted; nothing was ever visible
//! ```
//! A killed process leaves invisible parts behind; the store's own rule for incomplete uploads removes them
//! (docs/remote.md).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cowslip::image::ImageSink;
use cowslip::{Error, ErrorKind, Result};
use futures_util::future::{AbortHandle, Abortable, select};
use object_store::MultipartId;
use object_store::multipart::{MultipartStore, PartId};
use tokio::time::{sleep, timeout};

use crate::attend::{TICK, broken_off};
use crate::errors::store_error;
use crate::location::Location;
use crate::object::Object;
use crate::runtime::{block_on, runtime};

const OPERATION: &str = "write to a store";
const PART_BYTES: u64 = 16 << 20;
/// S3 accepts 10,000 parts.
const MOST_PARTS: u64 = 9_000;
const MOST_IN_FLIGHT: usize = 8;
/// A longer abort is left to the store's rule for incomplete uploads.
const ABORT_TIMEOUT: Duration = Duration::from_secs(15);
/// The same after the upload was broken off, which ends within a second.
const ABORT_AT_ONCE: Duration = Duration::from_millis(600);
const PARTS_AT_ONCE: Duration = Duration::from_millis(200);

/// An upload of an image or a file.
pub(crate) struct Upload {
    location: Location,
    name: PathBuf,
    parts: Arc<dyn MultipartStore>,
    id: MultipartId,
    part_bytes: u64,
    shared: Arc<Shared>,
    is_over: bool,
}

struct Shared {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    filling: BTreeMap<u64, Part>,
    done: BTreeMap<u64, PartId>,
    in_flight: BTreeMap<u64, AbortHandle>,
    error: Option<Error>,
}

struct Part {
    bytes: Vec<u8>,
    filled: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upload {
    /// Begins an upload of at most this many bytes.
    pub(crate) fn begin(to: &Location, most_bytes: u64) -> Result<Box<Self>> {
        let location = to.for_writing()?;
        let name = location.name();
        let Some(parts) = location.parts().cloned() else {
            return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                .of_file(&name)
                .because("only s3, gs and az can be written to: HTTP has no uploads in parts"));
        };
        let id = block_on(location.cancel(), async {
            let begun = parts.create_multipart(&location.key).await;
            begun.map_err(|error| store_error(OPERATION, &name, &error))
        })?;
        let part_bytes = most_bytes.div_ceil(MOST_PARTS).next_multiple_of(1 << 20).max(PART_BYTES);
        let shared = Shared { state: Mutex::new(State::default()), moved: Condvar::new() };
        let shared = Arc::new(shared);
        Ok(Box::new(Self { location, name, parts, id, part_bytes, shared, is_over: false }))
    }

    /// Waits until fewer than this many parts are in flight, or one has failed.
    fn wait_below(&self, most: usize) -> Result<MutexGuard<'_, State>> {
        let mut state = self.shared.lock();
        loop {
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            if self.location.cancel().is_cancelled() {
                return Err(broken_off().of_file(&self.name));
            }
            if state.in_flight.len() < most {
                return Ok(state);
            }
            let waited = self.shared.moved.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends a part with all of its bytes.
    fn send(&self, number: u64, bytes: Vec<u8>) -> Result<()> {
        let mut state = self.wait_below(MOST_IN_FLIGHT)?;
        let (handle, registration) = AbortHandle::new_pair();
        state.in_flight.insert(number, handle);
        drop(state);
        let (parts, id, key) =
            (Arc::clone(&self.parts), self.id.clone(), self.location.key.clone());
        let (shared, name) = (Arc::clone(&self.shared), self.name.clone());
        let landing = Landing { shared, number, outcome: None };
        let sent = async move {
            let mut landing = landing;
            let payload = Bytes::from(bytes).into();
            let put = parts.put_part(&key, &id, number as usize, payload).await;
            landing.outcome = Some(put.map_err(|error| store_error(OPERATION, &name, &error)));
        };
        runtime()?.spawn(Abortable::new(sent, registration));
        Ok(())
    }

    fn complete(&self, file_bytes: u64, head: &[u8]) -> Result<()> {
        let done = std::mem::take(&mut self.shared.lock().done);
        let wanted = file_bytes.div_ceil(self.part_bytes);
        if done.len() as u64 != wanted {
            return Err(Error::new(ErrorKind::System, OPERATION)
                .of_file(&self.name)
                .because(format!("{} of its {wanted} parts were sent", done.len())));
        }
        let parts = done.into_values().collect();
        block_on(self.location.cancel(), async {
            let completed =
                self.parts.complete_multipart(&self.location.key, &self.id, parts).await;
            let Err(error) = completed else { return Ok(()) };
            // The answer may be lost although the image is complete.
            match Object::open(&self.location, head.len() as u64).await {
                Ok((object, there)) if object.len_bytes() == file_bytes && there == head => Ok(()),
                _ => Err(store_error(OPERATION, &self.name, &error)),
            }
        })
    }
}

/// A part in flight. Its outcome is recorded however it ends.
struct Landing {
    shared: Arc<Shared>,
    number: u64,
    outcome: Option<Result<PartId>>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.in_flight.remove(&self.number);
        match self.outcome.take() {
            Some(Ok(part)) => drop(state.done.insert(self.number, part)),
            Some(Err(error)) => drop(state.error.get_or_insert(error)),
            None => {
                let ended = Error::new(ErrorKind::Busy, OPERATION).because("it was broken off");
                state.error.get_or_insert(ended);
            }
        }
        drop(state);
        self.shared.moved.notify_all();
    }
}

impl ImageSink for Upload {
    fn path(&self) -> &Path {
        &self.name
    }

    fn write_at(&self, mut bytes: &[u8], mut offset_bytes: u64) -> Result<()> {
        while !bytes.is_empty() {
            let number = offset_bytes / self.part_bytes;
            let at = offset_bytes % self.part_bytes;
            let length = (self.part_bytes - at).min(bytes.len() as u64);
            let (now, later) = bytes.split_at(length as usize);
            let mut state = self.shared.lock();
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            let part = state
                .filling
                .entry(number)
                .or_insert_with(|| Part { bytes: vec![0; self.part_bytes as usize], filled: 0 });
            part.bytes[at as usize..][..now.len()].copy_from_slice(now);
            part.filled += length;
            let full = (part.filled == self.part_bytes && number > 0)
                .then(|| state.filling.remove(&number))
                .flatten();
            drop(state);
            if let Some(part) = full {
                self.send(number, part.bytes)?;
            }
            (bytes, offset_bytes) = (later, offset_bytes + length);
        }
        Ok(())
    }

    fn commit(mut self: Box<Self>, file_bytes: u64) -> Result<()> {
        let filling = std::mem::take(&mut self.shared.lock().filling);
        let mut first = Vec::new();
        for (number, mut part) in filling {
            let rest = file_bytes.saturating_sub(number * self.part_bytes);
            part.bytes.truncate(rest.min(self.part_bytes) as usize);
            match number {
                0 => first = part.bytes,
                number => self.send(number, part.bytes)?,
            }
        }
        // The header's part is sent once all others are there.
        drop(self.wait_below(1)?);
        let head = first[..first.len().min(crate::pointer::MOST_BYTES as usize)].to_vec();
        if head.is_empty() {
            return Err(Error::new(ErrorKind::System, OPERATION).because("it has no beginning"));
        }
        self.send(0, first)?;
        drop(self.wait_below(1)?);
        self.complete(file_bytes, &head)?;
        self.is_over = true;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.shared.lock().in_flight.values().for_each(AbortHandle::abort);
        let Ok(runtime) = runtime() else { return };
        // Parts that arrive after the abort would stay, so they end first.
        let cancel = self.location.cancel();
        let (began, mut state) = (Instant::now(), self.shared.lock());
        let patience = || if cancel.is_cancelled() { PARTS_AT_ONCE } else { ABORT_TIMEOUT };
        while !state.in_flight.is_empty() && began.elapsed() < patience() {
            let waited = self.shared.moved.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        let abort = self.parts.abort_multipart(&self.location.key, &self.id);
        let is_late = async {
            let _ = timeout(ABORT_TIMEOUT, cancel.cancelled()).await;
            sleep(ABORT_AT_ONCE).await;
        };
        runtime.block_on(async {
            drop(select(pin!(abort), pin!(is_late)).await);
        });
    }
}
