//! Samples the kernel's counters, beside a program, into a recording.

mod devices;
mod facts;
mod prices;
mod processor;
mod reading;
mod states;
mod system;
mod throttles;
mod tree;
mod waits;

use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::recording::RecordingWriter;
use tree::Tree;

pub use facts::{facts, way_back};
pub use prices::prices;
pub use tree::Watch;

/// A thread that samples at an interval until it is stopped.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::time::Duration;
/// use cowslip_compare::recorder::{Recorder, Watch, facts};
///
/// let mut file = Vec::new();
/// let watch = Watch::Process(std::process::id());
/// let recorder = Recorder::start(file, &facts(), watch, Duration::from_secs(1))?;
/// // … the work …
/// file = recorder.stop()?.finish(BTreeMap::new())?;
/// assert!(String::from_utf8(file).unwrap().contains("vmstat.pgfault"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Recorder<W: Write> {
    orders: Sender<Order>,
    thread: JoinHandle<io::Result<RecordingWriter<W>>>,
}

#[derive(Debug)]
enum Order {
    Follow(u32),
    Stop,
}

impl<W: Write + Send + 'static> Recorder<W> {
    /// Takes the first sample, and then one each `interval` in a thread of its own.
    pub fn start(
        to: W,
        facts: &std::collections::BTreeMap<String, String>,
        watch: Watch,
        interval: Duration,
    ) -> io::Result<Self> {
        let mut writer = RecordingWriter::start(to, facts)?;
        let mut tree = Tree::new(watch);
        let start = Instant::now();
        sample(&mut writer, &mut tree, start)?;
        let (orders, received) = mpsc::channel();
        let work = move || {
            let mut next = start + interval;
            loop {
                let left = next.saturating_duration_since(Instant::now());
                let patience = tree.patience().map_or(left, |patience| left.min(patience));
                match received.recv_timeout(patience) {
                    Ok(Order::Follow(pid)) => tree.follow(pid),
                    Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) if Instant::now() < next => tree.glance(),
                    Err(RecvTimeoutError::Timeout) => {
                        sample(&mut writer, &mut tree, start)?;
                        // Late samples are left out, not caught up with.
                        next = (next + interval).max(Instant::now());
                    }
                }
            }
            sample(&mut writer, &mut tree, start)?;
            Ok(writer)
        };
        let thread = thread::Builder::new().name("recorder".to_owned()).spawn(work)?;
        Ok(Self { orders, thread })
    }

    /// Watches this process too, and its descendants: a command that was just started.
    pub fn follow(&self, pid: u32) {
        // A thread that ended gives the reason when it is stopped.
        let _ = self.orders.send(Order::Follow(pid));
    }

    /// Takes the last sample; the recording can then be finished. A process that has ended but has not been
    /// waited for still has its counters.
    pub fn stop(self) -> io::Result<RecordingWriter<W>> {
        let _ = self.orders.send(Order::Stop);
        self.thread.join().map_err(|_| io::Error::other("the recorder's thread panicked"))?
    }
}

fn sample<W: Write>(
    writer: &mut RecordingWriter<W>,
    tree: &mut Tree,
    start: Instant,
) -> io::Result<()> {
    let mut readings = Vec::new();
    let at_ns = start.elapsed().as_nanos() as u64;
    system::read(&mut readings);
    tree.read(&mut readings);
    writer.sample(at_ns, readings)
}
