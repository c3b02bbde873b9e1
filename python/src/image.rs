//! Images: saves that continue in the engine's threads, and restores.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cowslip::Place;
use cowslip::image::{
    self, Compression, Image, ImageIdentity, Progress, RestoreOptions, Restored, Root, SaveOptions,
    Strategy, Via,
};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use serde_json::json;

use crate::arena::{Arena, Frozen, backing};
use crate::errors::{raise, usage};
use crate::signals::{SIGNALS_EVERY, interruptible, patience};

/// The key of the program's state in the description of an image.
pub(crate) const STATE_KEY: &str = "cowslip.python";

/// A state in the form that `_state.load` reads.
fn state(pickled: &[u8], buffers: usize) -> String {
    json!({ "pickle": STANDARD.encode(pickled), "buffers": buffers }).to_string()
}

/// State shared between the thread that saves and its observers.
#[derive(Debug, Default)]
struct Shared {
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    is_cancelled: AtomicBool,
    is_followed: AtomicBool,
}

/// A save under way.
#[pyclass(frozen, module = "cowslip._native")]
#[derive(Debug)]
pub(crate) struct Save {
    shared: Arc<Shared>,
}

#[pymethods]
impl Save {
    /// Starts to save a view and a pickle in a thread, which holds the view until it ends. The thread calls
    /// `watcher._end(result, error)` at its end, and once it is followed, `watcher._tell(done_bytes,
    /// total_bytes)` before.
    #[staticmethod]
    #[pyo3(signature = (frozen, path, roots, pickled, watcher, parent = None, compression = "none", threads = 0))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn start(
        frozen: &Frozen,
        path: PathBuf,
        roots: BTreeMap<String, (usize, usize)>,
        pickled: PyBackedBytes,
        watcher: Py<PyAny>,
        parent: Option<PathBuf>,
        compression: &str,
        threads: usize,
    ) -> PyResult<Self> {
        let compression: Compression = compression.parse().map_err(|error| raise(&error))?;
        let (view, start) = (frozen.get()?, frozen.range().start);
        let root = |(name, (address, length_bytes)): (String, (usize, usize))| {
            let offset_bytes = address
                .checked_sub(start)
                .ok_or_else(|| usage(format!("{name} is not in the arena")))?;
            let (offset_bytes, length_bytes) = (offset_bytes as u64, length_bytes as u64);
            Ok((name, Root { arena: 0, offset_bytes, length_bytes }))
        };
        let roots = roots.into_iter().map(root).collect::<PyResult<_>>()?;
        let mut options =
            SaveOptions { parent, compression, threads, roots, ..SaveOptions::default() };
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let work = move || {
            options.user.insert(STATE_KEY.to_owned(), state(&pickled, options.roots.len()));
            let saved = image::save(&[&view], &path, &options, &mut |progress| {
                theirs.tell(progress, &watcher)
            });
            // Before the end is reported, so that the next freeze need not wait.
            drop(view);
            // If the interpreter has ended, nothing is reported.
            let _ = Python::try_attach(|py| {
                let ended = match &saved {
                    Ok(saved) => (Some(fields(saved)), None),
                    Err(error) => (None, Some(raise(error).into_value(py))),
                };
                report(py, watcher.call_method1(py, "_end", ended));
            });
        };
        thread::Builder::new()
            .name("cowslip-save".to_owned())
            .spawn(work)
            .map_err(|error| raise(&cowslip::Error::from_io("start a save", &error)))?;
        Ok(Self { shared })
    }

    /// Bytes done, and their total.
    #[getter]
    fn progress(&self) -> (u64, u64) {
        (self.shared.done_bytes.load(Relaxed), self.shared.total_bytes.load(Relaxed))
    }

    /// Reports progress to the watcher from now on.
    fn follow(&self) {
        self.shared.is_followed.store(true, Relaxed);
    }

    /// Ends the save soon, without an image.
    fn cancel(&self) {
        self.shared.is_cancelled.store(true, Relaxed);
    }
}

impl Shared {
    fn tell(&self, progress: Progress, watcher: &Py<PyAny>) -> ControlFlow<()> {
        self.done_bytes.store(progress.done_bytes, Relaxed);
        self.total_bytes.store(progress.total_bytes, Relaxed);
        if self.is_followed.load(Relaxed) {
            let told = (progress.done_bytes, progress.total_bytes);
            let _ = Python::try_attach(|py| report(py, watcher.call_method1(py, "_tell", told)));
        }
        if self.is_cancelled.load(Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Reports an exception on one of the engine's threads, as Python does if it cannot be caught.
fn report(py: Python<'_>, answer: PyResult<Py<PyAny>>) {
    if let Err(error) = answer {
        error.write_unraisable(py, None);
    }
}

fn fields(saved: &image::Saved) -> BTreeMap<&'static str, u64> {
    BTreeMap::from([
        ("file_bytes", saved.file_bytes),
        ("chunks", saved.chunks),
        ("left_out_chunks", saved.left_out_chunks),
        ("read_chunks", saved.read_chunks),
        ("took_ns", saved.took.as_nanos() as u64),
    ])
}

/// A restore in progress.
#[pyclass(frozen, module = "cowslip._native")]
#[derive(Debug)]
pub(crate) struct Restoring {
    restored: Arc<Restored>,
    identity: ImageIdentity,
}

#[pymethods]
impl Restoring {
    /// The arena, usable now.
    fn arena(&self) -> Arena {
        Arena::from(&self.restored)
    }

    /// The identity of the image.
    #[getter]
    fn identity(&self) -> String {
        self.identity.to_string()
    }

    /// The present address and length of a root.
    fn root(&self, name: &str) -> Option<(usize, usize)> {
        self.restored.root(name).map(|range| (range.start, range.len))
    }

    /// The strategy of the restore: hybrid, eager or resident.
    #[getter]
    fn strategy(&self) -> String {
        self.restored.strategy().to_string()
    }

    /// Bytes restored, and their total.
    #[getter]
    fn progress(&self) -> (u64, u64) {
        let progress = self.restored.progress();
        (progress.done_bytes, progress.total_bytes)
    }

    /// Waits until everything is restored and independent of the file; false on a timeout. Checks for signals
    /// meanwhile.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let patience = patience(timeout)?;
        let began = Instant::now();
        loop {
            let left = patience.saturating_sub(began.elapsed());
            let slice = left.min(SIGNALS_EVERY);
            if py.detach(|| self.restored.wait(slice)).map_err(|error| raise(&error))? {
                return Ok(true);
            }
            if slice == left {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }
}

/// Makes an arena with the content of an image: all of it before returning, or touched memory first.
#[pyfunction]
#[pyo3(signature = (path, original_place = false, backing = "thp", eager = false, threads = 0, via = None))]
pub(crate) fn restore(
    py: Python<'_>,
    path: PathBuf,
    original_place: bool,
    backing: &str,
    eager: bool,
    threads: usize,
    via: Option<PathBuf>,
) -> PyResult<Restoring> {
    let options = RestoreOptions {
        strategy: if eager { Strategy::Eager } else { Strategy::Hybrid },
        place: if original_place { Place::Original } else { Place::Anywhere },
        backing: self::backing(backing)?,
        threads,
        via: match via {
            None => Via::Environment,
            Some(socket) if socket.as_os_str().is_empty() => Via::File,
            Some(socket) => Via::Server(socket),
        },
        ..RestoreOptions::default()
    };
    let (restored, identity) = interruptible(py, |proceed| {
        let image = Image::open(&path)?;
        Ok((image.restore(0, &options, proceed)?, image.identity()))
    })?;
    Ok(Restoring { restored: Arc::new(restored), identity })
}

/// The identity of an image, which distinguishes it from all others, regardless of its name.
#[pyfunction]
pub(crate) fn identity(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let image = py.detach(|| Image::open(&path)).map_err(|error| raise(&error))?;
    Ok(image.identity().to_string())
}

/// The description of an image as JSON: arenas, roots, the program's own entries.
#[pyfunction]
pub(crate) fn describe(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let image = py.detach(|| Image::open(&path)).map_err(|error| raise(&error))?;
    serde_json::to_string(image.description()).map_err(|error| usage(error.to_string()))
}

/// Reads all of an image and checks it.
#[pyfunction]
pub(crate) fn verify(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    interruptible(py, |proceed| Image::open(&path)?.verify(proceed))
}
