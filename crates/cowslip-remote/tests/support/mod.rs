//! A store on loopback, faults on the way to it, and images to send.
#![allow(dead_code, unreachable_pub)]

pub mod files;
pub mod proxy;
pub mod server;
pub mod servers;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cowslip::image::{Image, Progress, SaveOptions, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, ArenaSlice};

use proxy::Proxy;
pub use server::{BUCKET, KEY, SECRET};
use server::{environment, serve};

pub const PATIENCE: Duration = Duration::from_secs(120);
pub const WORDS: usize = CHUNK_BYTES / 8;

/// The store of this process, behind a proxy.
pub struct World {
    pub root: PathBuf,
    pub proxy: Arc<Proxy>,
}

static WORLD: OnceLock<World> = OnceLock::new();

/// The start of every test.
pub fn world() -> &'static World {
    WORLD.get_or_init(|| {
        // Removes the last run's files.
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("s3");
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join(BUCKET)).unwrap();
        let proxy = Proxy::start(serve(root.clone()));
        environment(proxy.address);
        World { root, proxy }
    })
}

/// A folder of the bucket that no other test uses.
pub fn folder(name: &str) -> String {
    format!("s3://{BUCKET}/{name}")
}

/// A directory, removed with this value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("cowslip-remote-{name}-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn proceed(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A word that identifies its place, and does not compress.
pub fn pattern(seed: u64, i: usize) -> u64 {
    (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ seed.rotate_left(17)) | 1
}

/// An arena of this many chunks of pattern.
pub fn arena(chunks: usize, seed: u64) -> (Arena, ArenaSlice<u64>) {
    let arena = Arena::new(ByteCount((chunks * CHUNK_BYTES) as u64)).unwrap();
    let mut words = arena.slice::<u64>(chunks * WORDS).unwrap();
    words.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(seed, i));
    (arena, words)
}

/// An image of this many chunks of pattern.
pub fn image(path: &Path, chunks: usize, seed: u64) -> Image {
    let (arena, _words) = arena(chunks, seed);
    let frozen = arena.freeze().unwrap();
    save(&[&frozen], path, &SaveOptions::default(), &mut proceed).unwrap();
    Image::open(path).unwrap()
}

/// The number of words of an image that differ from the pattern. Reads chunk by chunk.
pub fn wrong_words(image: &Image, chunks: usize, seed: u64) -> cowslip::Result<usize> {
    let mut content = vec![0; CHUNK_BYTES];
    let mut wrong = 0;
    for chunk in 0..chunks {
        image.read_chunk(0, chunk as u32, &mut content)?;
        let words =
            content.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        wrong +=
            words.enumerate().filter(|(i, word)| *word != pattern(seed, chunk * WORDS + i)).count();
    }
    Ok(wrong)
}

/// All words of an arena.
pub fn words(arena: &Arena) -> &[u64] {
    let range = arena.range();
    #[allow(unsafe_code)]
    // SAFETY: the tests' arenas are handed out whole, and no thread writes to restored ones.
    unsafe {
        std::slice::from_raw_parts(range.start as *const u64, range.len / 8)
    }
}

/// Reports that something could not be tested; `./test` counts it. A capability that is declared present may not be
/// missing.
pub fn skip(capability: &str, why: &str) {
    let expected = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
    assert!(
        !expected.split(',').any(|word| word == capability),
        "{capability} is declared present, but: {why}"
    );
    println!("SKIPPED: {capability}: {why}");
}
