//! An image into this process' memory, by any strategy, and templates served over a socket.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::ValueEnum;
use cowslip::image::{Apart, ApartWay, Image, OnDamage, RestoreOptions, Restored, Strategy};
use cowslip::units::VirtRange;
use cowslip::{Place, Template};

/// How an image becomes memory.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StrategyArg {
    /// An arena at once; what is touched, then what was recorded, then the rest
    Hybrid,
    /// An arena, after everything was read
    Eager,
    /// The file mapped privately: not checked, and needed as long as the memory lives
    Map,
    /// The same, with all of it in the page tables from the start
    Populate,
    /// Anonymous memory, 4 KiB copied at each first touch
    #[value(name = "uffd-copy-4k")]
    UffdCopy4k,
    /// Anonymous memory, 2 MiB copied at each first touch
    #[value(name = "uffd-copy-2m")]
    UffdCopy2m,
    /// Anonymous memory, 2 MiB moved in at each first touch
    UffdMove,
    /// All of it in memory on huge pages, mapped privately from there
    Resident,
}

impl StrategyArg {
    /// How the library calls it, if that makes an arena.
    fn in_arena(self) -> Result<Strategy, ApartWay> {
        Err(match self {
            Self::Hybrid => return Ok(Strategy::Hybrid),
            Self::Eager => return Ok(Strategy::Eager),
            Self::Map => ApartWay::Map,
            Self::Populate => ApartWay::Populate,
            Self::UffdCopy4k => ApartWay::UffdCopy4k,
            Self::UffdCopy2m => ApartWay::UffdCopy2m,
            Self::UffdMove => ApartWay::UffdMove,
            Self::Resident => ApartWay::Resident,
        })
    }
}

/// Memory with an image's content.
#[derive(Debug)]
pub(crate) enum Memory {
    Arena(Restored),
    Apart(Apart),
}

impl Memory {
    pub(crate) fn restore(
        image: &Image,
        arena: u32,
        strategy: StrategyArg,
        record: bool,
        on_damage: Option<OnDamage>,
        progress: cowslip::image::OnProgress<'_>,
    ) -> cowslip::Result<Self> {
        match strategy.in_arena() {
            Ok(strategy) => {
                let options =
                    RestoreOptions { strategy, record, on_damage, ..RestoreOptions::default() };
                image.restore(arena, &options, progress).map(Self::Arena)
            }
            Err(way) => {
                image.restore_apart(arena, way, Place::Anywhere, on_damage).map(Self::Apart)
            }
        }
    }

    pub(crate) fn range(&self) -> VirtRange {
        match self {
            Self::Arena(restored) => restored.arena().range(),
            Self::Apart(apart) => apart.range(),
        }
    }
}

/// Hands a template to whoever connects to a socket, until this is dropped.
#[derive(Debug)]
pub(crate) struct Serving {
    path: PathBuf,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Only this user may connect.
    pub(crate) fn start(template: Template, path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let closing = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&closing);
        let thread = std::thread::spawn(move || serve(&template, &listener, &theirs));
        Ok(Self { path: path.to_owned(), closing, thread: Some(thread) })
    }
}

fn serve(template: &Template, listener: &UnixListener, closing: &AtomicBool) {
    while !closing.load(Relaxed) {
        let Ok((mut socket, _)) = listener.accept() else { continue };
        // Who went away, or is too slow, gets nothing.
        let _ = socket.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = socket.set_read_timeout(Some(Duration::from_secs(1)));
        if !closing.load(Relaxed) && template.send(&socket).is_ok() {
            // Closed by the other side when it has the template.
            let _ = socket.read(&mut [0]);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.closing.store(true, Relaxed);
        let woken = UnixStream::connect(&self.path).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// For restores whose progress nobody watches.
pub(crate) fn proceed(_: cowslip::image::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
