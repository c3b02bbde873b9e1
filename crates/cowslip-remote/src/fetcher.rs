//! Ranges of an object, brought near before they are read.
//!
//! ```text
//!            prefetch(Soon)            a stream is free: neighbours in one request
//!   (none) ───────────────▶ Queued ─────────────────────────────┐
//!      │                       │ prefetch(Now)                   ▼
//!      └───────────────────────┴─────────────────────────────▶ Coming ──all bytes──▶ Ready ──read──▶ (none)
//!        prefetch(Now), read: a request of its own                │ last runner failed
//!                                                                 └──────────────▶ Failed ──read──▶ (none)
//! ```
//! * A runner is a task with a request for pieces that lie one after the other. It retries a broken request from where
//!   it broke, and starts a second runner for late pieces. The first runner with a whole piece settles it.
//! * **No reader hangs.** A piece that is Coming has a runner; a runner that ends, for any reason, settles each of its
//!   pieces or leaves it to another one ([`Runner`]'s drop). Every wait has a time limit.
//! * **Bounded.** Pieces that are Queued, Coming or Ready are awaited, or were named by callers, which name no more
//!   than [`prefetch_bytes`](cowslip::image::ImageSource::prefetch_bytes).
//! * Listeners are called without the lock.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

use cowslip::image::{OnArrival, Urgency};
use cowslip::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use futures_util::future::try_join;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep, timeout_at};

use crate::attend::{TICK, broken_off};
use crate::link::{Link, SHORTEST_BYTES};
use crate::object::{Object, READ, Refused};
use crate::runtime::runtime;

/// Attempts at a request before its pieces have failed; the store's client retries requests without an answer by
/// itself.
const ATTEMPTS: u32 = 5;
const BACKOFF: Duration = Duration::from_millis(50);
/// Unneeded bytes that may lie between neighbours in one request: padding.
const MOST_GAP_BYTES: u64 = 64 << 10;
/// Distance in the queue up to which a neighbour joins a request: threads that write take turns, and recorded pieces go
/// before pieces that only lie beside them.
const MOST_PLACES: u64 = 4;
/// A longer piece that a reader waits for comes in two halves at once.
const HALVED_BYTES: u64 = 1 << 20;
/// Second requests are for late pieces, not for a full link.
const HEDGES_FREE: u64 = 8;
const HEDGES_ONE_IN: u64 = 10;
/// The most runners for the same bytes at a time.
const MOST_RUNNERS: u32 = 3;

#[derive(Debug)]
pub(crate) struct Fetcher {
    object: Object,
    runtime: &'static Runtime,
    process: u32,
    state: Mutex<State>,
    settled: Condvar,
    listeners: Mutex<Vec<Weak<OnArrival>>>,
}

#[derive(Debug)]
struct State {
    link: Link,
    pieces: BTreeMap<u64, Piece>,
    queue: VecDeque<u64>,
    /// The number of pieces named so far.
    named: u64,
    /// Runners for the queue.
    requests: usize,
    /// Requests so far, and those for late pieces.
    made: u64,
    hedges: u64,
    /// Set once the object was replaced: no more bytes will come.
    lost: Option<Error>,
    is_closed: bool,
}

#[derive(Debug)]
struct Piece {
    len: u64,
    /// Its place in the order in which pieces were named.
    place: u64,
    stage: Stage,
    runners: u32,
    /// The time when it is expected.
    expected: Instant,
}

#[derive(Debug)]
enum Stage {
    Queued,
    Coming,
    Ready(Vec<u8>),
    Failed(Error),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Fetcher {
    pub(crate) fn new(object: Object, streams: usize) -> Result<Arc<Self>> {
        let state = State {
            link: Link::new(streams),
            pieces: BTreeMap::new(),
            queue: VecDeque::new(),
            named: 0,
            requests: 0,
            made: 0,
            hedges: 0,
            lost: None,
            is_closed: false,
        };
        Ok(Arc::new(Self {
            object,
            runtime: runtime()?,
            process: std::process::id(),
            state: Mutex::new(state),
            settled: Condvar::new(),
            listeners: Mutex::new(Vec::new()),
        }))
    }

    pub(crate) fn object(&self) -> &Object {
        &self.object
    }

    /// Ends the runners, at their next byte.
    pub(crate) fn close(&self) {
        let mut state = locked(&self.state);
        state.is_closed = true;
        state.queue.clear();
        state.pieces.clear();
    }

    pub(crate) fn subscribe(&self, listener: Weak<OnArrival>) {
        let mut listeners = locked(&self.listeners);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    pub(crate) fn prefetch(self: &Arc<Self>, ranges: &[Range<u64>], urgency: Urgency) {
        // A forked child has no threads that could fetch.
        if std::process::id() != self.process {
            return;
        }
        let mut state = locked(&self.state);
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            match urgency {
                Urgency::Soon => state.name(range.clone()),
                Urgency::Now => {
                    if let Some(runner) = state.hurry(range.clone()) {
                        self.start(runner, true);
                    }
                }
            }
        }
        self.pump(&mut state);
    }

    pub(crate) fn is_ready(&self, range: &Range<u64>) -> bool {
        let state = locked(&self.state);
        let piece = state.pieces.get(&range.start);
        piece.is_none_or(|piece| matches!(piece.stage, Stage::Ready(_) | Stage::Failed(_)))
    }

    /// Fills `buffer`, and forgets the bytes.
    pub(crate) fn read(self: &Arc<Self>, buffer: &mut [u8], offset_bytes: u64) -> Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        if std::process::id() != self.process {
            return Err(Error::new(ErrorKind::Usage, READ)
                .of_file(self.object.name())
                .because("it was opened by the process that this one was forked from")
                .advise("open it again"));
        }
        let range = offset_bytes..offset_bytes + buffer.len() as u64;
        let mut state = locked(&self.state);
        loop {
            match state.pieces.get(&offset_bytes) {
                // Another caller named it with another length.
                Some(piece) if piece.len != buffer.len() as u64 => {
                    state.pieces.remove(&offset_bytes);
                }
                Some(Piece { stage: Stage::Coming, .. }) => {
                    if self.object.location().cancel().is_cancelled() {
                        return Err(broken_off().of_file(self.object.name()));
                    }
                    let waited = self.settled.wait_timeout(state, TICK);
                    state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
                }
                Some(Piece { stage: Stage::Ready(_) | Stage::Failed(_), .. }) => break,
                Some(Piece { stage: Stage::Queued, .. }) | None => {
                    if let Some(runner) = state.hurry(range.clone()) {
                        self.start(runner, true);
                    }
                }
            }
        }
        let piece = state.pieces.remove(&offset_bytes).map(|piece| piece.stage);
        drop(state);
        match piece {
            Some(Stage::Ready(bytes)) => {
                buffer.copy_from_slice(&bytes);
                Ok(())
            }
            Some(Stage::Failed(error)) => Err(error),
            _ => unreachable!("looked at under the lock"),
        }
    }

    /// Starts as many runners for the queue as suit the link.
    fn pump(self: &Arc<Self>, state: &mut State) {
        while !state.is_closed
            && let Some(pieces) = state.next_run()
        {
            state.requests += 1;
            self.start(pieces, false);
        }
    }

    fn start(self: &Arc<Self>, pieces: Vec<Range<u64>>, is_urgent: bool) {
        let runner =
            Runner { fetcher: Arc::clone(self), rest: pieces, is_of_queue: !is_urgent, why: None };
        self.runtime.spawn(runner.run(is_urgent));
    }

    fn tell(&self) {
        self.settled.notify_all();
        let listeners: Vec<_> = locked(&self.listeners).iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener());
    }

    fn is_over(&self) -> bool {
        let state = locked(&self.state);
        state.is_closed || state.lost.is_some()
    }
}

impl State {
    fn name(&mut self, range: Range<u64>) {
        if self.pieces.contains_key(&range.start) {
            return;
        }
        self.named += 1;
        let piece = Piece::new(&range, self.named, self.lost.clone());
        if matches!(piece.stage, Stage::Queued) {
            self.queue.push_back(range.start);
        }
        self.pieces.insert(range.start, piece);
    }

    /// Hurries a range that a reader waits for. Returns the ranges for a new runner, unless the range is about to come.
    fn hurry(&mut self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        let lost = self.lost.clone();
        let direct = self.link.late_after(range.end - range.start) / 3;
        let piece = self.pieces.entry(range.start).or_insert_with(|| Piece::new(&range, 0, lost));
        let now = Instant::now();
        let is_to_start = match piece.stage {
            Stage::Queued => true,
            Stage::Coming => piece.expected > now + direct && piece.runners < MOST_RUNNERS,
            Stage::Ready(_) | Stage::Failed(_) => false,
        };
        is_to_start.then(|| {
            piece.stage = Stage::Coming;
            piece.runners += 1;
            piece.expected = now + direct;
            let whole = range.start..range.start + piece.len;
            self.made += 1;
            vec![whole]
        })
    }

    /// The pieces of the next request for the queue: the first one, and its neighbours that are queued too.
    fn next_run(&mut self) -> Option<Vec<Range<u64>>> {
        let is_queued = |pieces: &BTreeMap<u64, Piece>, start: u64| {
            pieces.get(&start).is_some_and(|piece| matches!(piece.stage, Stage::Queued))
        };
        while self.queue.front().is_some_and(|&start| !is_queued(&self.pieces, start)) {
            self.queue.pop_front();
        }
        let first = *self.queue.front()?;
        // At most a stream's share of the queue.
        let share = self.queue.len() as u64 * self.pieces[&first].len / self.link.streams() as u64;
        let most_bytes = self.link.range_bytes().min(share.max(SHORTEST_BYTES));
        let turn = self.pieces[&first].place;
        let mut span = first..first + self.pieces[&first].len;
        let mut run = vec![span.clone()];
        let joins = |piece: &Piece, gap: Option<u64>, length: u64, joined: usize| {
            let is_near = gap.is_some_and(|gap| gap <= MOST_GAP_BYTES) && length <= most_bytes;
            let is_next = piece.place <= turn + 2 * joined as u64 + MOST_PLACES;
            is_near && is_next && matches!(piece.stage, Stage::Queued)
        };
        for (&start, piece) in self.pieces.range(first + 1..) {
            let end = start + piece.len;
            if !joins(piece, start.checked_sub(span.end), end - span.start, run.len()) {
                break;
            }
            run.push(start..end);
            span.end = end;
        }
        // Writers place neighbours in the order in which they were ready.
        for (&start, piece) in self.pieces.range(..first).rev() {
            let end = start + piece.len;
            if !joins(piece, span.start.checked_sub(end), span.end - start, run.len()) {
                break;
            }
            run.push(start..end);
            span.start = start;
        }
        if self.requests >= self.link.requests(span.end - span.start) {
            return None;
        }
        run.sort_unstable_by_key(|piece| piece.start);
        let now = Instant::now();
        for range in &run {
            let expected = now + self.link.late_after(range.end - span.start) / 3;
            if let Some(piece) = self.pieces.get_mut(&range.start) {
                (piece.stage, piece.runners, piece.expected) = (Stage::Coming, 1, expected);
            }
        }
        self.made += 1;
        Some(run)
    }

    fn is_coming(&self, piece: &Range<u64>) -> bool {
        let found = self.pieces.get(&piece.start);
        found.is_some_and(|found| {
            found.len == piece.end - piece.start && matches!(found.stage, Stage::Coming)
        })
    }
}

impl Piece {
    fn new(range: &Range<u64>, place: u64, lost: Option<Error>) -> Self {
        Self {
            len: range.end - range.start,
            place,
            stage: lost.map_or(Stage::Queued, Stage::Failed),
            runners: 0,
            expected: Instant::now(),
        }
    }
}

/// A task that fetches pieces.
struct Runner {
    fetcher: Arc<Fetcher>,
    /// The pieces that it has not settled yet, in order.
    rest: Vec<Range<u64>>,
    is_of_queue: bool,
    /// The reason why the rest is unavailable.
    why: Option<Error>,
}

impl Runner {
    async fn run(mut self, may_halve: bool) {
        let mut may_hedge = true;
        let (mut began, mut attempt) = (Instant::now(), 0);
        let budget = self.fetcher.object.location().budget();
        loop {
            if attempt > 0 {
                sleep(BACKOFF * (1 << attempt)).await;
            }
            self.keep_coming();
            if self.rest.is_empty() || self.fetcher.is_over() {
                return;
            }
            let before = self.rest.len();
            let is_one = self.rest.len() == 1;
            let is_long = self.rest[0].end - self.rest[0].start > HALVED_BYTES;
            let fetched = match may_halve && is_one && is_long {
                true => self.halves(&mut may_hedge).await,
                false => self.stream(&mut may_hedge).await,
            };
            let Err(refused) = fetched else { return };
            let is_passing = refused.is_passing;
            if refused.error.kind() == ErrorKind::Vanished {
                self.lose(&refused.error);
            }
            self.why = Some(refused.error);
            attempt += 1;
            if self.rest.len() < before {
                // A request that still delivers pieces starts afresh.
                (began, attempt) = (Instant::now(), 1);
            }
            if !is_passing || attempt == ATTEMPTS || began.elapsed() >= budget {
                return;
            }
        }
    }

    /// Forgets pieces that another runner has settled.
    fn keep_coming(&mut self) {
        let state = locked(&self.fetcher.state);
        self.rest.retain(|piece| state.is_coming(piece));
    }

    /// Fetches one piece by two requests.
    async fn halves(&mut self, may_hedge: &mut bool) -> Result<(), Refused> {
        let whole = self.rest[0].clone();
        let middle = whole.start + (whole.end - whole.start) / 2;
        let object = self.fetcher.object.clone();
        let both =
            try_join(collect(&object, whole.start..middle), collect(&object, middle..whole.end));
        let began = Instant::now();
        let late_at = began + self.late_after(whole.end - whole.start);
        let (mut first, second) = self.watch(both, late_at, may_hedge).await?;
        first.extend_from_slice(&second);
        self.settle(first);
        Ok(())
    }

    /// Fetches all pieces by one request, and settles each as soon as it is whole.
    async fn stream(&mut self, may_hedge: &mut bool) -> Result<(), Refused> {
        let Some((first, last)) = self.rest.first().zip(self.rest.last()) else { return Ok(()) };
        let (range, began) = (first.start..last.end, Instant::now());
        let mut late_at = began + self.late_after(first.end - first.start);
        let object = self.fetcher.object.clone();
        let get = object.get(range.clone());
        let mut stream = self.watch(get, late_at, may_hedge).await?;
        let latency = began.elapsed();
        let (answered, mut at) = (Instant::now(), range.start);
        let mut bytes: Vec<u8> = Vec::new();
        while let Some(piece) = self.rest.first().cloned() {
            let Some(frame) = self.watch(stream.next(), late_at, may_hedge).await else {
                return Err(object.short());
            };
            let mut frame = frame.map_err(|error| object.broken(&error))?;
            if !*may_hedge {
                // Another runner may be ahead by now.
                self.keep_coming();
                if self.rest.first() != Some(&piece) {
                    bytes.clear();
                }
            }
            while !frame.is_empty() {
                let Some(piece) = self.rest.first().cloned() else { break };
                let before = piece.start.saturating_sub(at).min(frame.len() as u64);
                at += before;
                let mut wanted = frame.split_off(before as usize);
                let missing = (piece.end - at).min(wanted.len() as u64);
                frame = wanted.split_off(missing as usize);
                at += missing;
                if bytes.capacity() == 0 {
                    bytes.reserve_exact((piece.end - piece.start) as usize);
                }
                bytes.extend_from_slice(&wanted);
                if at == piece.end {
                    self.settle(std::mem::take(&mut bytes));
                    let next = self.rest.first().map_or(0, |piece| piece.end - at);
                    late_at = Instant::now() + self.late_after(next);
                }
            }
            if self.fetcher.is_over() {
                return Ok(());
            }
        }
        let (bytes, transfer) = (range.end - range.start, answered.elapsed());
        locked(&self.fetcher.state).link.measured(latency, bytes, transfer);
        Ok(())
    }

    fn late_after(&self, bytes: u64) -> Duration {
        locked(&self.fetcher.state).link.late_after(bytes)
    }

    /// Waits for `work`; if that is late, starts a second runner for the rest, once.
    async fn watch<T>(
        &self,
        work: impl Future<Output = T>,
        late_at: Instant,
        may_hedge: &mut bool,
    ) -> T {
        let mut work = pin!(work);
        if *may_hedge {
            if let Ok(done) = timeout_at(late_at, &mut work).await {
                return done;
            }
            *may_hedge = false;
            self.hedge();
        }
        work.await
    }

    fn hedge(&self) {
        let mut state = locked(&self.fetcher.state);
        if state.hedges >= HEDGES_FREE + state.made / HEDGES_ONE_IN {
            return;
        }
        let mut pieces = self.rest.clone();
        pieces.retain(|piece| {
            let is_coming = state.is_coming(piece);
            let found = state.pieces.get_mut(&piece.start);
            let found = found.filter(|piece| is_coming && piece.runners < MOST_RUNNERS);
            found.map(|piece| piece.runners += 1).is_some()
        });
        if !pieces.is_empty() {
            state.hedges += 1;
            state.made += 1;
            self.fetcher.start(pieces, true);
        }
    }

    /// Settles the first of the rest with its bytes.
    fn settle(&mut self, bytes: Vec<u8>) {
        let piece = self.rest.remove(0);
        let mut state = locked(&self.fetcher.state);
        if state.is_coming(&piece)
            && let Some(found) = state.pieces.get_mut(&piece.start)
        {
            found.stage = Stage::Ready(bytes);
            drop(state);
            self.fetcher.tell();
        }
    }

    /// Fails all pieces that have not come.
    fn lose(&self, error: &Error) {
        let mut state = locked(&self.fetcher.state);
        state.lost = Some(error.clone());
        state.queue.clear();
        for piece in state.pieces.values_mut() {
            if matches!(piece.stage, Stage::Queued | Stage::Coming) {
                piece.stage = Stage::Failed(error.clone());
            }
        }
        drop(state);
        self.fetcher.tell();
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let mut state = locked(&self.fetcher.state);
        for piece in &self.rest {
            if state.is_coming(piece)
                && let Some(found) = state.pieces.get_mut(&piece.start)
            {
                found.runners -= 1;
                if found.runners == 0 {
                    let error = self.why.clone().unwrap_or_else(|| {
                        Error::new(ErrorKind::System, READ)
                            .of_file(self.fetcher.object.name())
                            .because("the task that fetches it was ended")
                    });
                    found.stage = Stage::Failed(error);
                }
            }
        }
        if self.is_of_queue {
            state.requests -= 1;
        }
        self.fetcher.pump(&mut state);
        drop(state);
        self.fetcher.tell();
    }
}

async fn collect(object: &Object, range: Range<u64>) -> Result<Vec<u8>, Refused> {
    let length = (range.end - range.start) as usize;
    // Leaves room for the other half.
    let mut bytes = Vec::with_capacity(2 * length + 1);
    let mut stream = object.get(range).await?;
    while let Some(frame) = stream.next().await {
        bytes.extend_from_slice(&frame.map_err(|error| object.broken(&error))?);
    }
    if bytes.len() == length { Ok(bytes) } else { Err(object.short()) }
}
