//! Places that are no regular files are not replaced: a command writes to them in place, or refuses them.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use cowslip::image::{SaveOptions, save};
use cowslip::units::ByteCount;
use cowslip::{Arena, Frozen};
use support::{COWSLIP, Folder, run};

/// The placeholder for the place in the words of a command.
const PLACE: &str = "PLACE";
const IN_PLACE: i32 = 0;
const REFUSED: i32 = 2;

/// A folder with a device, a FIFO, a folder, a link to nothing and a link to a device.
struct Places {
    folder: Folder,
    all: Vec<PathBuf>,
}

impl Places {
    fn new() -> Self {
        let folder = Folder::new("places");
        let [device, fifo, inner, lost, link] =
            ["device", "fifo", "inner", "lost", "link"].map(|name| folder.0.join(name));
        let made = |words: &[&str], path: &Path| {
            run(Command::new(words[0]).args(&words[1..2]).arg(path).args(&words[2..]))
                .status
                .success()
        };
        let mut all = Vec::new();
        // Only root makes devices.
        if run(Command::new("mknod").arg(&device).args(["c", "1", "3"])).status.success() {
            symlink(&device, &link).unwrap();
            all.extend([device, link]);
        } else {
            println!("SKIPPED: a device of the test's own: not root");
        }
        assert!(made(&["mkfifo", "--mode=600"], &fifo));
        drain(OpenOptions::new().read(true).write(true).open(&fifo).unwrap());
        fs::create_dir(&inner).unwrap();
        symlink(folder.0.join("nothing"), &lost).unwrap();
        all.extend([fifo, inner, lost]);
        Self { folder, all }
    }

    /// The names, numbers, kinds and devices of the entries.
    fn entries(&self) -> Vec<(PathBuf, u64, u32, u64)> {
        let entries = fs::read_dir(&self.folder.0).unwrap().map(|entry| entry.unwrap().path());
        let mut entries: Vec<_> = entries
            .map(|path| {
                let metadata = fs::symlink_metadata(&path).unwrap();
                (path, metadata.ino(), metadata.mode(), metadata.rdev())
            })
            .collect();
        entries.sort();
        entries
    }

    /// Writes to each of the places; `write` returns the exit code, or `None` if it could not be tried.
    fn each(&self, what: &str, in_place: bool, write: impl Fn(&Path) -> Option<(i32, String)>) {
        let before = self.entries();
        for place in &self.all {
            let is_stream = fs::metadata(place).is_ok_and(|metadata| !metadata.is_dir());
            let wanted = if is_stream && in_place { IN_PLACE } else { REFUSED };
            let Some((code, said)) = write(place) else { return };
            assert_eq!(code, wanted, "{what} to {}: {said}", place.display());
            assert_eq!(self.entries(), before, "{what} to {}", place.display());
        }
    }
}

/// Reads until the process ends.
fn drain(mut fifo: File) {
    assert!(fifo.metadata().unwrap().file_type().is_fifo());
    thread::spawn(move || {
        let mut bytes = [0; 1 << 16];
        while fifo.read(&mut bytes).is_ok_and(|read| read > 0) {}
    });
}

fn frozen(arena: &Arena) -> Frozen {
    arena.slice::<u64>(1 << 18).unwrap().iter_mut().zip(1..).for_each(|(word, i)| *word = i);
    arena.freeze().unwrap()
}

fn save_at(frozen: &Frozen, path: &Path) -> cowslip::Result<()> {
    save(&[frozen], path, &SaveOptions::default(), &mut |_| ControlFlow::Continue(())).map(drop)
}

/// Runs a command with the place among its words.
fn cowslip(words: &[&str], place: &Path) -> (i32, String) {
    let words = words.iter().map(|word| word.replace(PLACE, place.to_str().unwrap()));
    let ran = run(Command::new(COWSLIP).args(words));
    (ran.status.code().unwrap_or(-1), ran.stderr)
}

#[test]
fn images_refuse_what_is_no_file() {
    let places = Places::new();
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let frozen = frozen(&arena);
    let own = Folder::new("places-image");
    let image = own.0.join("image");
    save_at(&frozen, &image).unwrap();
    places.each("a save", false, |place| {
        let refused = save_at(&frozen, place).unwrap_err();
        Some((cowslip_sys::exit_code::from_error(&refused).into(), refused.to_string()))
    });
    let image = image.to_str().unwrap();
    places.each("a merge", false, |place| {
        Some(cowslip(&["image", "merge", image, "-o", PLACE], place))
    });
    places.each("a socket", false, |place| {
        Some(cowslip(&["serve", image, "--socket", PLACE], place))
    });
}

#[test]
fn reports_are_written_in_place() {
    let places = Places::new();
    let own = Folder::new("places-report");
    let file = |name: &str, text: &str| {
        let path = own.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (good, bad) =
        (file("good.csv", "seconds\n1\n1.1\n1\n"), file("same.csv", "seconds\n1\n1.1\n1\n"));
    for words in [
        &["run", "--report", PLACE, "--", "true"][..],
        &["run", "--log", PLACE, "--", "true"],
        &["compare", &good, "--json=PLACE", "--", &bad],
        &["compare", &good, "--html", PLACE, "--", &bad],
        &["status", "--json=PLACE"],
        &["setup", "--dry-run", "--json=PLACE"],
    ] {
        places.each(&words.join(" "), true, |place| Some(cowslip(words, place)));
    }
}

#[test]
fn traces_are_written_in_place() {
    let mut places = Places::new();
    let own = Folder::new("places-trace");
    let trace = own.0.join("a.trace");
    let (code, said) = cowslip(&["trace", "-o", PLACE, "--", "true"], &trace);
    if code != 0 {
        println!("SKIPPED: a trace: {said}");
        return;
    }
    let trace = trace.to_str().unwrap();
    for words in [
        &["trace", "export", trace, "-o", PLACE][..],
        &["trace", "report", trace, "--json", PLACE],
        &["trace", "diff", trace, trace, "--json", PLACE],
        &["trace", "html", trace, "-o", PLACE],
    ] {
        places.each(&words.join(" "), true, |place| Some(cowslip(words, place)));
    }
    // A file that grows while it is written may be made where a link leads to.
    places.all.retain(|place| place.exists());
    places.each("a trace", true, |place| {
        let (code, said) = cowslip(&["trace", "-o", PLACE, "--", "true"], place);
        Some((if code == 125 { REFUSED } else { code }, said))
    });
}
