//! Faults on the way to the store, and the facts about them that the soak needs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::processes::Victim;
use crate::proxy::{Fault, Request};

/// The number of requests in a thousand with each fault.
const OF_READS: [(u32, &str); 9] = [
    (30, "503"),
    (25, "reset"),
    (10, "lost"),
    (30, "cut"),
    (20, "short"),
    (20, "flip"),
    (1, "etag"),
    (30, "late"),
    (12, "stall"),
];
const OF_WRITES: [(u32, &str); 9] = [
    (30, "503"),
    (20, "reset"),
    (15, "lost"),
    (5, "cut"),
    (5, "short"),
    (3, "flip"),
    (3, "etag"),
    (20, "late"),
    (8, "stall"),
];
/// A writer that is to be killed at a request is killed at one in this many.
const KILLED_ONE_IN: u32 = 6;

pub(crate) struct Faults {
    state: Mutex<State>,
    is_armed: AtomicBool,
}

struct State {
    rng: Rng,
    counts: BTreeMap<&'static str, u64>,
    /// Objects that an answer reported as replaced, and when.
    other_tags: HashMap<String, Instant>,
    /// The present writer.
    writer: u32,
    /// The writer of each upload to which data was sent, and each writer's last one.
    uploads: HashMap<String, u32>,
    last_upload: HashMap<u32, String>,
    /// Uploads that may have begun without a reported number.
    lost_uploads: usize,
    victim: Option<Victim>,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        let state = State {
            rng: Rng::with_seed(seed ^ 0xfa17),
            counts: BTreeMap::new(),
            other_tags: HashMap::new(),
            writer: 0,
            uploads: HashMap::new(),
            last_upload: HashMap::new(),
            lost_uploads: 0,
            victim: None,
        };
        Self { state: Mutex::new(state), is_armed: AtomicBool::new(false) }
    }

    /// The fault of a request.
    pub(crate) fn decide(&self, request: &Request) -> Fault {
        let mut state = self.state.lock().unwrap();
        let is_read = request.method == "GET";
        if !is_read && self.is_armed.load(Relaxed) && state.rng.u32(..KILLED_ONE_IN) == 0 {
            self.is_armed.store(false, Relaxed);
            if let Some(victim) = state.victim.take() {
                let _ = victim.lock().unwrap().kill();
            }
        }
        let (name, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        let upload = query.split('&').find_map(|part| part.strip_prefix("uploadId="));
        if let Some(upload) = upload {
            let now = state.writer;
            let writer = *state.uploads.entry(upload.to_owned()).or_insert(now);
            if writer == now {
                state.last_upload.insert(writer, upload.to_owned());
            }
        }
        let table = if is_read { OF_READS } else { OF_WRITES };
        let mut place = state.rng.u32(..1000);
        let kind = table.into_iter().find_map(|(share, kind)| {
            let is_it = place < share;
            place = place.saturating_sub(share);
            is_it.then_some(kind)
        });
        let Some(kind) = kind else { return Fault::None };
        let fault = state.fault(kind);
        // For an object that is no image, another ETag does not matter.
        if fault == Fault::OtherTag && is_read {
            state.other_tags.insert(name.clone(), Instant::now());
        }
        let begins_upload = request.method == "POST" && upload.is_none();
        if begins_upload && !matches!(fault, Fault::Busy | Fault::Reset) {
            state.lost_uploads += 1;
        }
        *state.counts.entry(kind).or_default() += 1;
        fault
    }

    /// Kills the victim at one of the next requests that write.
    pub(crate) fn arm(&self, victim: Victim) {
        self.state.lock().unwrap().victim = Some(victim);
        self.is_armed.store(true, Relaxed);
    }

    pub(crate) fn disarm(&self) {
        self.is_armed.store(false, Relaxed);
        self.state.lock().unwrap().victim = None;
    }

    /// True if an answer since then reported that the object was replaced.
    pub(crate) fn had_other_tag(&self, name: &str, since: Instant) -> bool {
        self.state.lock().unwrap().other_tags.get(name).is_some_and(|&at| at >= since)
    }

    /// Sets the present writer.
    pub(crate) fn set_writer(&self, writer: u32) {
        self.state.lock().unwrap().writer = writer;
    }

    /// True if an upload may be left over, because its writer was killed during it.
    pub(crate) fn may_be_left(&self, upload: &str, killed: &HashSet<u32>) -> Option<bool> {
        let state = self.state.lock().unwrap();
        let writer = state.uploads.get(upload)?;
        let is_last = state.last_upload.get(writer).is_some_and(|last| last == upload);
        Some(is_last && killed.contains(writer))
    }

    /// The most uploads that may have begun without a reported number.
    pub(crate) fn lost_uploads(&self) -> usize {
        self.state.lock().unwrap().lost_uploads
    }

    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().unwrap().counts.clone()
    }
}

impl State {
    fn fault(&mut self, kind: &str) -> Fault {
        let rng = &mut self.rng;
        let mut ms = |range| Duration::from_millis(rng.u64(range));
        match kind {
            "503" => Fault::Busy,
            "reset" => Fault::Reset,
            "lost" => Fault::Lost,
            "cut" => Fault::Cut,
            "short" => Fault::Short,
            "flip" => Fault::Flip,
            "etag" => Fault::OtherTag,
            "late" => match ms(0..10).as_millis() {
                0 => Fault::Late(ms(400..3000)),
                _ => Fault::Late(ms(5..400)),
            },
            _ => match ms(0..20).as_millis() {
                // Longer than the permitted silence of a stream.
                0 => Fault::Stall(ms(11_000..14_000)),
                _ => Fault::Stall(ms(100..3000)),
            },
        }
    }
}
