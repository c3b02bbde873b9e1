//! Images in a store: sent, listed, checked, restored and fetched, against s3s-fs on loopback.

mod support;

use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cowslip::image::{Image, OnDamage, RestoreOptions, SaveOptions, Strategy, Via, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, ErrorKind};
use cowslip_remote::{Cache, ListedKind, PruneOptions};
use support::proxy::Fault;
use support::{
    Folder, PATIENCE, SECRET, WORDS, arena, folder, image, pattern, proceed, skip, words, world,
    wrong_words,
};

#[test]
fn what_was_pushed_is_what_is_pulled() {
    let world = world();
    let local = Folder::new("pushed");
    let file = local.file("store");
    let saved = image(&file, 10, 1);
    let url = folder("pushed") + "/store";
    world.proxy.rule("pushed", |_| Fault::None);
    let pushed = cowslip_remote::push(&file, &url, None, &mut proceed).unwrap();
    assert_eq!((pushed.sent_images, pushed.url.as_str()), (1, url.as_str()));

    world.proxy.rule("pushed", |_| Fault::None);
    let there = cowslip_remote::open(&url).unwrap();
    let requests = world.proxy.seen("pushed");
    let of_image =
        requests.iter().filter(|request| !request.target.contains("working-set")).count();
    assert_eq!(of_image, 2, "{requests:?}");
    assert_eq!(there.identity(), saved.identity());
    there.verify(&mut proceed).unwrap();
    assert_eq!(wrong_words(&there, 10, 1).unwrap(), 0);

    let back = local.file("back");
    cowslip_remote::pull(&url, &back, &mut proceed).unwrap();
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&file).unwrap());
    let listed = cowslip_remote::list(&folder("pushed")).unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((listed[0].name.as_str(), listed[0].bytes), ("store", saved.summary().file_bytes));
    let ListedKind::Image { identity, parent: None, .. } = &listed[0].kind else {
        panic!("{listed:?}");
    };
    assert_eq!(*identity, saved.identity());
}

#[test]
fn a_chain_goes_with_its_last_and_is_found_by_identity() {
    world();
    let local = Folder::new("chain");
    let (arena, mut slice) = arena(8, 2);
    let names = ["monday", "tuesday", "wednesday"];
    let mut parent = None;
    for (i, name) in names.iter().enumerate() {
        slice[i * WORDS] = 77 + i as u64;
        let options = SaveOptions { parent: parent.take(), ..SaveOptions::default() };
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        save(&[&frozen], &local.file(name), &options, &mut proceed).unwrap();
        parent = Some(local.file(name));
    }
    // Another image has the name of the first.
    let other = Folder::new("chain");
    image(&other.file("monday"), 8, 3);
    let url = folder("chain");
    cowslip_remote::push(&other.file("monday"), &format!("{url}/monday"), None, &mut proceed)
        .unwrap();
    let last = local.file("wednesday");
    let pushed = cowslip_remote::push(&last, &format!("{url}/"), None, &mut proceed).unwrap();
    assert_eq!(pushed.sent_images, 3);
    let again = cowslip_remote::push(&last, &format!("{url}/"), None, &mut proceed).unwrap();
    assert_eq!(again.sent_images, 1, "the others are there");

    let there = cowslip_remote::open(&format!("{url}/wednesday")).unwrap();
    assert_eq!(there.ancestors().len(), 2);
    let options = RestoreOptions { strategy: Strategy::Eager, ..RestoreOptions::default() };
    let restored = there.restore(0, &options, &mut proceed).unwrap();
    assert!(words(restored.arena()) == &slice[..]);

    let back = Folder::new("chain");
    let pulled =
        cowslip_remote::pull(&format!("{url}/wednesday"), &back.file("wednesday"), &mut proceed);
    assert_eq!(pulled.unwrap().images, 3);
    let image = Image::open(&back.file("wednesday")).unwrap();
    let restored = image.restore(0, &options, &mut proceed).unwrap();
    assert!(words(restored.arena()) == &slice[..]);
}

#[test]
fn a_program_saves_to_a_store_while_it_runs() {
    let world = world();
    let (arena, mut slice) = arena(40, 4);
    let url = folder("saved") + "/first";
    world.proxy.rule("saved", |_| Fault::None);
    let frozen = arena.freeze_timeout(PATIENCE).unwrap();
    slice[0] = 5;
    let options = SaveOptions::default();
    cowslip_remote::save(&[&frozen], &url, None, &options, &mut proceed).unwrap();
    let parts: Vec<_> =
        world.proxy.seen("saved").into_iter().filter(|request| request.method == "PUT").collect();
    let numbers: Vec<_> =
        parts.iter().map(|request| request.target.contains("partNumber=1&")).collect();
    assert_eq!(parts.len(), (40 * CHUNK_BYTES).div_ceil(16 << 20) + 1, "{parts:?}");
    assert!(parts.iter().all(|request| request.body_bytes <= 16 << 20));
    assert!(numbers.iter().rev().skip(1).all(|is_first| !is_first), "the header's part is last");
    drop(frozen);

    let second = folder("saved") + "/second";
    let frozen = arena.freeze_timeout(PATIENCE).unwrap();
    let saved =
        cowslip_remote::save(&[&frozen], &second, Some(&url), &options, &mut proceed).unwrap();
    assert_eq!(saved.chunks, 1);
    let there = cowslip_remote::open(&second).unwrap();
    let restored = there.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
    assert!(restored.wait(PATIENCE).unwrap());
    assert!(words(restored.arena()) == &slice[..]);
    let needed = cowslip_remote::save(&[&frozen], &url, Some(&second), &options, &mut proceed);
    assert_eq!(needed.unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn what_is_touched_comes_first_then_what_was_recorded() {
    let world = world();
    let local = Folder::new("recorded");
    image(&local.file("store"), 24, 5);
    let url = folder("recorded") + "/store";
    cowslip_remote::push(&local.file("store"), &url, None, &mut proceed).unwrap();
    let touched = [20, 2, 11];
    {
        let options = RestoreOptions { record: true, ..RestoreOptions::default() };
        let restored = match cowslip_remote::open(&url).unwrap().restore(0, &options, &mut proceed)
        {
            Ok(restored) => restored,
            Err(error) => return skip("userfaultfd", &error.to_string()),
        };
        for chunk in touched {
            assert_eq!(words(restored.arena())[chunk * WORDS], pattern(5, chunk * WORDS));
        }
        restored.finish_recording().unwrap();
        assert!(restored.wait(PATIENCE).unwrap());
    }
    // A single stream, because concurrent requests arrive in any order.
    let options = cowslip_remote::OpenOptions::default().streams(1);
    let image = cowslip_remote::open_with(&url, options).unwrap();
    world.proxy.rule("recorded", |_| Fault::Late(Duration::from_millis(20)));
    let restored = image.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
    assert!(restored.wait(PATIENCE).unwrap());
    let (arena, wrong) =
        (restored.arena(), |i: &usize| words(restored.arena())[*i] != pattern(5, *i));
    assert_eq!((0..arena.range().len / 8).filter(wrong).count(), 0);
    let offsets: Vec<u64> = world
        .proxy
        .seen("recorded")
        .iter()
        .filter_map(|request| {
            request.range.as_ref()?.strip_prefix("bytes=")?.split('-').next()?.parse().ok()
        })
        .collect();
    // Chunks lie in the file about as in memory, some places apart, in the order in which threads wrote them.
    let is_near = |offset: &u64, chunk: usize| {
        offset.abs_diff((chunk * CHUNK_BYTES) as u64) <= 5 * CHUNK_BYTES as u64
    };
    let first: Vec<_> = offsets.iter().take(5).collect();
    for chunk in touched {
        assert!(
            first.iter().any(|offset| is_near(offset, chunk)),
            "{chunk} is not in the first of {offsets:?}"
        );
    }
}

/// Restores 14 chunks while about every third answer suffers `fault`: no byte is wrong, and it ends. Bits flip in every
/// eighth, because a chunk is asked for eight times.
fn restored_despite(name: &'static str, fault: Fault) {
    let world = world();
    let local = Folder::new(name);
    image(&local.file("store"), 14, 6);
    let url = format!("{}/store", folder(name));
    let each = if fault == Fault::Flip { 8 } else { 3 };
    let writes = matches!(fault, Fault::Busy | Fault::Reset);
    // Includes uploads for faults that are not of an answer.
    world.proxy.rule(name, move |request| {
        if writes && request.method == "PUT" && request.number % each == 1 {
            fault
        } else {
            Fault::None
        }
    });
    cowslip_remote::push(&local.file("store"), &url, None, &mut proceed).unwrap();
    world.proxy.rule(name, move |request| {
        if request.method == "GET" && request.number % each == 1 { fault } else { Fault::None }
    });
    for strategy in [Strategy::Hybrid, Strategy::Eager] {
        let image = cowslip_remote::open(&url).unwrap();
        let options = RestoreOptions { strategy, ..RestoreOptions::default() };
        let restored = image.restore(0, &options, &mut proceed).unwrap();
        // In a scattered order.
        for i in 0..14 {
            let at = (i * 5 % 14) * WORDS + i;
            assert_eq!(words(restored.arena())[at], pattern(6, at), "{fault:?}");
        }
        assert!(restored.wait(PATIENCE).unwrap(), "{fault:?}");
        let all = words(restored.arena()).iter().enumerate();
        assert_eq!(all.filter(|(i, word)| **word != pattern(6, *i)).count(), 0, "{fault:?}");
    }
    let back = local.file("back");
    cowslip_remote::pull(&url, &back, &mut proceed).unwrap();
    assert!(std::fs::read(&back).unwrap() == std::fs::read(local.file("store")).unwrap());
}

#[test]
fn a_store_that_is_busy_is_asked_again() {
    restored_despite("busy", Fault::Busy);
}

#[test]
fn connections_that_break_are_made_anew() {
    restored_despite("reset", Fault::Reset);
}

#[test]
fn bodies_that_break_off_are_gone_on_with() {
    restored_despite("cut", Fault::Cut);
}

#[test]
fn bodies_that_are_too_short_are_asked_for_again() {
    restored_despite("short", Fault::Short);
}

#[test]
fn bits_that_flip_on_the_way_are_seen_by_nobody() {
    restored_despite("flip", Fault::Flip);
}

#[test]
fn answers_that_are_late_are_asked_for_twice() {
    restored_despite("late", Fault::Stall(Duration::from_secs(4)));
    let seen = world().proxy.seen("late");
    let mut ranges: Vec<_> = seen.iter().filter_map(|request| request.range.clone()).collect();
    let all = ranges.len();
    ranges.sort();
    ranges.dedup();
    assert!(ranges.len() < all, "nothing was asked for twice");
}

#[test]
fn a_pointer_whose_body_breaks_off_is_asked_for_again() {
    let world = world();
    let local = Folder::new("pointer");
    let file = local.file("store");
    image(&file, 2, 14);
    let url = folder("pointer");
    let pushed = cowslip_remote::push(&file, &format!("{url}/store"), Some("latest"), &mut proceed);
    let latest = pushed.unwrap().latest.unwrap();
    world
        .proxy
        .rule("pointer", |request| if request.number % 2 == 0 { Fault::Cut } else { Fault::None });
    let pointer = format!("{url}/latest");
    assert_eq!(cowslip_remote::read_latest(&pointer).unwrap(), Some(latest.clone()));
    let there = cowslip_remote::open(&format!("{url}/store")).unwrap();
    assert_eq!(cowslip_remote::set_latest(&pointer, "store", &there).unwrap(), latest);
    assert_eq!(cowslip_remote::list(&url).unwrap().len(), 2);
}

#[test]
fn an_object_that_was_replaced_is_an_error_and_no_mixture() {
    let world = world();
    let local = Folder::new("replaced");
    let [before, after] = ["before", "after"].map(|name| local.file(name));
    image(&before, 12, 7);
    image(&after, 12, 8);
    let url = folder("replaced") + "/store";
    cowslip_remote::push(&before, &url, None, &mut proceed).unwrap();
    let there = cowslip_remote::open(&url).unwrap();
    assert_eq!(wrong_words(&there, 3, 7).unwrap(), 0);
    cowslip_remote::push(&after, &url, None, &mut proceed).unwrap();
    let mut content = vec![0; CHUNK_BYTES];
    for chunk in 3..12 {
        let error = there.read_chunk(0, chunk, &mut content).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Vanished, "{error}");
    }
    assert_eq!(wrong_words(&cowslip_remote::open(&url).unwrap(), 12, 8).unwrap(), 0);

    // During a restore: received chunks are right, the others are reported.
    let there = cowslip_remote::open(&url).unwrap();
    world.proxy.rule(
        "replaced",
        |request| {
            if request.number >= 4 { Fault::OtherTag } else { Fault::None }
        },
    );
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let on_damage =
        OnDamage::new(move |error, range| telling.lock().unwrap().push((error.kind(), range)));
    let options = RestoreOptions { on_damage: Some(on_damage), ..RestoreOptions::default() };
    let restored = match there.restore(0, &options, &mut proceed) {
        Ok(restored) if restored.strategy() == Strategy::Hybrid => restored,
        _ => return skip("userfaultfd", "restores are eager"),
    };
    let error = restored.wait(PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Vanished, "{error}");
    let told = told.lock().unwrap();
    assert!(told.iter().all(|(kind, _)| *kind == ErrorKind::Vanished));
    let start = restored.arena().range().start;
    let lost: Vec<_> = told.iter().map(|(_, range)| (range.start - start) / CHUNK_BYTES).collect();
    assert!(!lost.is_empty());
    for chunk in (0..12).filter(|chunk| !lost.contains(chunk)) {
        let there = &words(restored.arena())[chunk * WORDS..][..WORDS];
        let wrong =
            there.iter().enumerate().filter(|(i, word)| **word != pattern(8, chunk * WORDS + i));
        assert_eq!(wrong.count(), 0);
    }
}

#[test]
fn what_cannot_be_had_is_told_of_and_never_zeroes() {
    let world = world();
    let local = Folder::new("lost");
    let saved = image(&local.file("store"), 6, 9);
    let url = folder("lost") + "/store";
    cowslip_remote::push(&local.file("store"), &url, None, &mut proceed).unwrap();
    drop(saved);
    let there = cowslip_remote::open(&url).unwrap();
    // The first requested chunk is always wrong.
    let wanted: Arc<Mutex<Option<(u64, u64)>>> = Arc::default();
    world.proxy.rule("lost", move |request| {
        let span = |range: &String| {
            let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((from.parse::<u64>().ok()?, to.parse::<u64>().ok()?))
        };
        let Some((from, to)) = request.range.as_ref().and_then(span) else { return Fault::None };
        let mut wanted = wanted.lock().unwrap();
        let (first, last) = *wanted.get_or_insert((from, to));
        if from <= last && first <= to { Fault::Flip } else { Fault::None }
    });
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let on_damage = OnDamage::new(move |error, _| {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        count.fetch_add(1, Relaxed);
    });
    let options = RestoreOptions { on_damage: Some(on_damage), ..RestoreOptions::default() };
    let restored = match there.restore(0, &options, &mut proceed) {
        Ok(restored) if restored.strategy() == Strategy::Hybrid => restored,
        _ => return skip("userfaultfd", "restores are eager"),
    };
    assert_eq!(restored.wait(PATIENCE).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!((1..6).contains(&told.load(Relaxed)), "{told:?}");
    // A system call that reads there gets an error; another access would be a SIGBUS.
    let bytes = bytes_of(words(restored.arena()));
    let mut lost = 0;
    for (chunk, content) in bytes.chunks_exact(CHUNK_BYTES).enumerate() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        match std::io::Write::write(&mut writer, &content[..8]) {
            Err(_) => lost += 1,
            Ok(_) => {
                let mut word = [0; 8];
                std::io::Read::read_exact(&mut reader, &mut word).unwrap();
                assert_eq!(u64::from_le_bytes(word), pattern(9, chunk * WORDS));
            }
        }
    }
    assert_eq!(lost, told.load(Relaxed));
}

fn bytes_of(words: &[u64]) -> &[u8] {
    #[allow(unsafe_code)]
    // SAFETY: the same memory; only the kernel reads it.
    unsafe {
        std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8)
    }
}

#[test]
fn an_upload_that_is_broken_off_is_aborted() {
    let world = world();
    let local = Folder::new("broken");
    image(&local.file("store"), 40, 10);
    let url = folder("broken") + "/store";
    world.proxy.rule("broken", |_| Fault::None);
    let mut steps = 0;
    let is_put = || world.proxy.seen("broken").iter().any(|request| request.method == "PUT");
    let mut stop = |_| {
        steps += 1;
        if steps < 30 {
            return ControlFlow::Continue(());
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_put() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        ControlFlow::Break(())
    };
    let error = cowslip_remote::push(&local.file("store"), &url, None, &mut stop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let seen = world.proxy.seen("broken");
    assert!(is_put(), "parts were sent");
    // A broken part may be seen after the abort: they use several connections.
    assert!(seen.iter().any(|request| request.method == "DELETE"), "{seen:?}");
    assert!(cowslip_remote::list(&folder("broken")).unwrap().is_empty());
    let missing = cowslip_remote::open(&url).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::File, "{missing}");
}

#[test]
fn a_store_that_falls_silent_is_broken_off_by_the_progress_callback() {
    let world = world();
    let local = Folder::new("silent");
    image(&local.file("store"), 10, 14);
    let url = folder("silent") + "/store";
    let push = |holds: &'static str| {
        world.proxy.rule("silent", move |request| match request.method == holds {
            true => Fault::Hold,
            false => Fault::None,
        });
        let is_held = || world.proxy.seen("silent").iter().any(|request| request.method == holds);
        let mut began = None;
        let mut stop = |_| match is_held() {
            true => {
                began = Some(Instant::now());
                ControlFlow::Break(())
            }
            false => ControlFlow::Continue(()),
        };
        let error = match holds {
            "GET" => cowslip_remote::pull(&url, &local.file("there"), &mut stop).unwrap_err(),
            _ => cowslip_remote::push(&local.file("store"), &url, None, &mut stop).unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        let took = began.expect("it was broken off").elapsed();
        assert!(took < Duration::from_secs(2), "{holds}: {took:?}");
    };
    ["POST", "PUT", "GET"].into_iter().for_each(push);
    assert!(!local.file("there").exists());
}

const VICTIM: &str = "COWSLIP_TEST_PUSH";

/// The process to kill: it pushes the file to the URL that the environment names.
#[test]
#[ignore = "a part of the next one"]
fn victim() {
    let Ok(wanted) = std::env::var(VICTIM) else { return };
    let (file, url) = wanted.split_once('\n').unwrap();
    cowslip_remote::push(file.as_ref(), url, None, &mut proceed).unwrap();
}

fn victim_of(file: &Path, url: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "victim", "--ignored", "--test-threads=1"]);
    command.env(VICTIM, format!("{}\n{url}", file.display()));
    command
}

#[test]
fn a_push_that_is_killed_at_any_part_leaves_nothing_to_be_seen() {
    let world = world();
    let local = Folder::new("killed");
    let file = local.file("store");
    image(&file, 20, 11);
    // Start, three parts, end.
    let mut was_whole = false;
    for step in 0..7 {
        let name = format!("killed{step}");
        let url = format!("{}/store", folder(&name));
        let held = Arc::new(Mutex::new(false));
        let holding = Arc::clone(&held);
        world.proxy.rule(&name, move |request| {
            if request.method == "GET" {
                return Fault::None;
            }
            let is_now = request.number == step;
            *holding.lock().unwrap() |= is_now;
            if is_now { Fault::Hold } else { Fault::None }
        });
        let mut child = victim_of(&file, &url).stdout(Stdio::null()).spawn().unwrap();
        while !*held.lock().unwrap() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let _ = child.kill();
        let status = child.wait().unwrap();
        let listed = cowslip_remote::list(&folder(&name)).unwrap();
        if status.success() {
            was_whole = true;
            cowslip_remote::open(&url).unwrap().verify(&mut proceed).unwrap();
        } else {
            assert!(listed.is_empty(), "killed at request {step}: {listed:?}");
        }
        // A later push is not hindered.
        world.proxy.rule(&name, |_| Fault::None);
        cowslip_remote::push(&file, &url, None, &mut proceed).unwrap();
        assert_eq!(wrong_words(&cowslip_remote::open(&url).unwrap(), 20, 11).unwrap(), 0);
    }
    assert!(was_whole, "each of its requests was one to be killed at");
}

#[test]
fn eight_parts_are_in_flight_at_most() {
    let world = world();
    let local = Folder::new("flight");
    image(&local.file("store"), 120, 12);
    let url = folder("flight") + "/store";
    world.proxy.rule("flight", |request| match request.method.as_str() {
        "PUT" => Fault::Late(Duration::from_millis(200)),
        _ => Fault::None,
    });
    cowslip_remote::push(&local.file("store"), &url, None, &mut proceed).unwrap();
    let most = world.proxy.most_at_once("flight");
    assert!((4..=8).contains(&most), "{most}");
}

#[test]
fn a_store_that_refuses_is_an_error_that_keeps_the_secret() {
    let world = world();
    let local = Folder::new("refused");
    image(&local.file("store"), 2, 13);
    let http = format!("http://{}/store", world.proxy.address);
    let errors = [
        cowslip_remote::open(&(folder("refused") + "/store")).unwrap_err(),
        cowslip_remote::push(&local.file("store"), &http, None, &mut proceed).unwrap_err(),
    ];
    for error in &errors {
        assert!(!format!("{error} {error:?}").contains(SECRET));
    }
    assert_eq!(errors[0].kind(), ErrorKind::File);
    assert_eq!(errors[1].kind(), ErrorKind::Unsupported);
    let wrong = "a-secret-of-somebody-else";
    let output = victim_of(&local.file("store"), &(folder("refused") + "/store"))
        .env("AWS_SECRET_ACCESS_KEY", wrong)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(said.contains("Denied") && !said.contains(wrong), "{said}");
    let there = cowslip_remote::Location::parse(&(folder("refused") + "/store")).unwrap();
    assert!(!format!("{there:?}").contains(SECRET));
    for entry in walk(&world.root) {
        let content = std::fs::read(&entry).unwrap_or_default();
        assert!(
            !content.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()),
            "{entry:?}"
        );
    }
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|entry| entry.path())
        .collect()
}

/// Saves an arena to a URL, once its last freeze is thawed.
fn save_to(arena: &Arena, url: &str, parent: Option<&str>) {
    let frozen = arena.freeze_timeout(PATIENCE).unwrap();
    cowslip_remote::save(&[&frozen], url, parent, &SaveOptions::default(), &mut proceed).unwrap();
}

#[test]
fn what_nobody_needs_is_pruned_and_what_somebody_needs_is_not() {
    let world = world();
    world.proxy.rule("pruned", |_| Fault::None);
    let url = |name: &str| format!("{}/{name}", folder("pruned"));
    let (arena, mut words) = arena(4, 14);
    let save_as = |name: &str, parent: Option<&str>| {
        save_to(&arena, &url(name), parent.map(url).as_deref());
    };
    save_as("old", None);
    save_as("monday", None);
    words[0] = 1;
    save_as("tuesday", Some("monday"));
    words[1] = 2;
    save_as("wednesday", Some("tuesday"));
    let image = cowslip_remote::open(&url("wednesday")).unwrap();
    cowslip_remote::set_latest(&url("latest"), "wednesday", &image).unwrap();

    let folder = folder("pruned") + "/";
    let prune = |options| cowslip_remote::prune(&folder, options, &mut proceed).unwrap();
    let keep_one = || PruneOptions::keep(1).grace(Duration::ZERO);
    assert_eq!(prune(PruneOptions::keep(1)).deleted, [""; 0], "all are young");
    assert_eq!(prune(keep_one().dry_run(true)).deleted, ["old"]);
    let pruned = prune(keep_one());
    assert_eq!((pruned.deleted.as_slice(), pruned.kept.len()), (&["old".to_owned()][..], 3));
    assert!(pruned.deleted_bytes > 4 << 20);

    let pruned = prune(keep_one().merge(2));
    let merged = format!("{}.cowslip", image.identity());
    assert_eq!(pruned.merged, [("wednesday".to_owned(), merged.clone())]);
    assert_eq!(pruned.deleted, ["monday", "tuesday", "wednesday"]);
    let latest = cowslip_remote::open(&url("latest")).unwrap();
    assert_eq!((latest.identity(), latest.ancestors().len()), (image.identity(), 0));
    latest.verify(&mut proceed).unwrap();
    let restored = latest.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
    assert_eq!(support::words(restored.arena())[..3], [1, 2, pattern(14, 2)]);
    // A child of the merged image finds it by its identity.
    save_as("thursday", Some(&merged));
    assert_eq!(prune(keep_one()).deleted, [""; 0]);
}

#[test]
fn what_is_kept_is_not_fetched_again_and_is_not_trusted() {
    let world = world();
    let local = Folder::new("kept");
    for (name, seed) in [("first", 21), ("second", 22)] {
        let file = local.file(name);
        image(&file, 10, seed);
        cowslip_remote::push(&file, &(folder("kept") + "/"), None, &mut proceed).unwrap();
    }
    let kept = local.file("cache");
    // Has room for one of them.
    let cache = Cache::open(&kept, 30 << 20, |why| panic!("{why}")).unwrap();
    let restore = |name: &str, seed: u64| {
        world.proxy.rule("kept", |_| Fault::None);
        let image = cache.image(&format!("{}/{name}", folder("kept"))).unwrap();
        let restored = image.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
        assert!(restored.wait(PATIENCE).unwrap());
        let words = support::words(restored.arena());
        assert!(words.iter().enumerate().all(|(i, word)| *word == pattern(seed, i)), "{name}");
        let seen = world.proxy.seen("kept");
        let of_image = seen.iter().filter(|request| !request.target.contains("working-set"));
        of_image.count()
    };
    let files = || {
        let entries = std::fs::read_dir(&kept).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let wait_kept = |name: &str| {
        let file =
            kept.join(format!("{}.cowslip", Image::open(&local.file(name)).unwrap().identity()));
        let deadline = Instant::now() + PATIENCE;
        while files() != [file.clone()] {
            assert!(Instant::now() < deadline, "{name}: {:?}", files());
            std::thread::yield_now();
        }
        file
    };
    assert!(restore("first", 21) > 2);
    let first = wait_kept("first");
    assert_eq!(restore("first", 21), 1, "its header");
    let mut bytes = std::fs::read(&first).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&first, &bytes).unwrap();
    assert!(restore("first", 21) > 1, "one chunk");
    assert!(files().is_empty(), "what was wrong is gone");
    restore("first", 21);
    wait_kept("first");
    restore("second", 22);
    let second = wait_kept("second");

    let small = Cache::open(&kept, 1 << 20, |why| panic!("{why}")).unwrap();
    let image = small.image(&(folder("kept") + "/first")).unwrap();
    image.verify(&mut proceed).unwrap();
    assert_eq!(files(), [second], "it has no room, and none is made for it");
}

#[test]
fn a_chain_is_kept_image_by_image_and_a_full_disk_stops_nobody() {
    let world = world();
    world.proxy.rule("links", |_| Fault::None);
    let local = Folder::new("links");
    let url = |name: &str| format!("{}/{name}", folder("links"));
    let (arena, mut words) = arena(4, 23);
    let save_as = |name: &str, parent: Option<&str>| {
        save_to(&arena, &url(name), parent.map(url).as_deref());
    };
    save_as("monday", None);
    words[0] = 1;
    save_as("tuesday", Some("monday"));
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    let told = |_: &str| {
        TOLD.fetch_add(1, Relaxed);
    };
    let cache = Cache::open(&local.file("cache"), 1 << 30, told).unwrap();
    for expected in [2, 2] {
        let image = cache.image(&url("tuesday")).unwrap();
        // Chunk 0 of the parent is not needed and never read.
        image.verify(&mut proceed).unwrap();
        image.ancestors()[0].verify(&mut proceed).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while std::fs::read_dir(local.file("cache")).unwrap().count() != expected {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
    assert_eq!(TOLD.load(Relaxed), 0);
    // Where others may write: what is kept could become another content.
    let set = |mode| std::fs::set_permissions(local.file("cache"), PermissionsExt::from_mode(mode));
    set(0o777).unwrap();
    let open = Cache::open(&local.file("cache"), 1 << 30, told);
    assert_eq!(open.unwrap_err().kind(), ErrorKind::Denied);
    set(0o700).unwrap();
    // Where nothing can be written.
    std::fs::write(local.file("a file"), "").unwrap();
    assert_eq!(
        Cache::open(&local.file("a file"), 1 << 30, told).unwrap_err().kind(),
        ErrorKind::File
    );
    std::fs::remove_dir_all(local.file("cache")).unwrap();
    cache.image(&url("tuesday")).unwrap().verify(&mut proceed).unwrap();
    assert!(TOLD.load(Relaxed) > 0);
}

#[test]
fn a_server_fetches_an_image_once_for_all_who_restore_it() {
    let world = world();
    let local = Folder::new("served");
    let file = local.file("store");
    image(&file, 20, 31);
    let url = folder("served") + "/store";
    world.proxy.rule("served", |_| Fault::None);
    cowslip_remote::push(&file, &url, None, &mut proceed).unwrap();
    let cache = Cache::open(&local.file("cache"), 1 << 30, |why| panic!("{why}")).unwrap();
    let open = move |path: &Path| cache.image(path.to_str().unwrap());
    let options = cowslip_serve::Options {
        images: vec![url.clone().into()],
        opener: cowslip_serve::Opener::new(open),
        most_clients: 64,
        most_memory: ByteCount::gib(1),
    };
    let socket = local.file("socket");
    let server = cowslip_serve::Server::bind(&socket, options, |why| panic!("{why}")).unwrap();
    world.proxy.rule("served", |_| Fault::None);
    let (stopped, stop) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| server.run(stopped.as_fd()));
        let workers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let image = cowslip_remote::open(&url).unwrap();
                    let via = Via::Server(socket.clone());
                    let options = RestoreOptions { via, ..RestoreOptions::default() };
                    let restored = image.restore(0, &options, &mut proceed).unwrap();
                    let words = support::words(restored.arena());
                    words.iter().enumerate().filter(|(i, word)| **word != pattern(31, *i)).count()
                })
            })
            .collect();
        let wrong: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        drop(stop);
        serving.join().unwrap().unwrap();
        assert_eq!(wrong, 0);
    });
    // Each chunk came once, or a second time because it was late.
    let bytes = |range: &str| {
        let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some(to.parse::<u64>().ok()? - from.parse::<u64>().ok()? + 1)
    };
    let seen = world.proxy.seen("served");
    let fetched: u64 =
        seen.iter().filter_map(|request| request.range.as_deref()).filter_map(bytes).sum();
    let stored = std::fs::metadata(&file).unwrap().len();
    assert!((40 << 20..2 * stored).contains(&fetched), "{fetched} of {stored}");
}
