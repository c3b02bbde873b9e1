//! Images in third-party stores. One body of tests runs against each server, in a process of its own; the environment
//! names the store.

mod support;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::process::Command;
use std::time::Instant;

use cowslip::ErrorKind;
use cowslip::image::{Image, RestoreOptions, SaveOptions, Strategy, save};
use cowslip::units::CHUNK_BYTES;
use cowslip_remote::ListedKind;
use support::servers::{self, Server, ask_s3};
use support::{
    BUCKET, Folder, PATIENCE, WORDS, arena, image, pattern, proceed, skip, words, wrong_words,
};

const STORE: &str = "COWSLIP_TEST_STORE";
const SERVER: &str = "COWSLIP_TEST_SERVER";

#[test]
fn images_in_moto() {
    against("moto", servers::moto());
}

#[test]
fn images_in_radosgw() {
    against("radosgw", servers::radosgw());
}

#[test]
fn images_in_azurite() {
    against("azurite", servers::azurite());
}

/// Runs the body against a server, unless it could not be started.
fn against(name: &str, server: Option<Server>) {
    let Some(server) = server else { return };
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["body::", "--ignored", "--nocapture", "--test-threads=2"])
        .env(STORE, &server.bucket)
        .env(SERVER, name)
        .envs(server.environment.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
    said.lines().filter(|line| line.starts_with("SKIPPED: ")).for_each(|line| println!("{line}"));
    assert!(run.status.success(), "against {name}:\n{said}");
    let ran = said.lines().filter(|line| line.ends_with("... ok") || *line == "ok").count();
    assert!(ran >= 9, "{said}");
}

mod body {
    use super::*;

    /// A folder of the bucket that no other test uses.
    fn folder(name: &str) -> String {
        format!("{}/{name}", std::env::var(STORE).expect("a test of stores runs this"))
    }

    fn is_s3() -> Option<SocketAddr> {
        let endpoint = std::env::var("AWS_ENDPOINT").ok()?;
        endpoint.strip_prefix("http://")?.parse().ok()
    }

    fn server() -> String {
        std::env::var(SERVER).unwrap()
    }

    #[test]
    #[ignore = "run against each server"]
    fn what_was_pushed_is_restored_and_pulled() {
        let local = Folder::new("pushed");
        let file = local.file("store");
        let saved = image(&file, 12, 21);
        let url = folder("pushed") + "/store";
        let pushed = cowslip_remote::push(&file, &url, None, &mut proceed).unwrap();
        assert_eq!((pushed.sent_images, pushed.url.as_str()), (1, url.as_str()));
        let there = cowslip_remote::open(&url).unwrap();
        assert_eq!(there.identity(), saved.identity());
        there.verify(&mut proceed).unwrap();
        for strategy in [Strategy::Hybrid, Strategy::Eager] {
            let there = cowslip_remote::open(&url).unwrap();
            let options = RestoreOptions { strategy, ..RestoreOptions::default() };
            let restored = there.restore(0, &options, &mut proceed).unwrap();
            assert_eq!(words(restored.arena())[10 * WORDS], pattern(21, 10 * WORDS));
            assert!(restored.wait(PATIENCE).unwrap());
            let all = words(restored.arena()).iter().enumerate();
            assert_eq!(all.filter(|(i, word)| **word != pattern(21, *i)).count(), 0);
        }
        let back = local.file("back");
        cowslip_remote::pull(&url, &back, &mut proceed).unwrap();
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&file).unwrap());
    }

    #[test]
    #[ignore = "run against each server"]
    fn names_are_any_that_a_key_may_be() {
        let local = Folder::new("names");
        let file = local.file("store");
        let saved = image(&file, 2, 26);
        let names =
            ["with space", "plus+and=eq&amp", "Größe-日本", "tilde~(x)!*'", "semi;colon,at@"];
        for name in names {
            let url = format!("{}/{name}", folder("names"));
            cowslip_remote::push(&file, &url, None, &mut proceed).unwrap();
            let there = cowslip_remote::open(&url).unwrap();
            assert_eq!(there.identity(), saved.identity(), "{name}");
            assert_eq!(wrong_words(&there, 2, 26).unwrap(), 0, "{name}");
        }
        let listed = cowslip_remote::list(&folder("names")).unwrap();
        let mut listed: Vec<_> = listed.iter().map(|image| image.name.as_str()).collect();
        let mut wanted = names.to_vec();
        listed.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(listed, wanted);
    }

    #[test]
    #[ignore = "run against each server"]
    fn a_chain_goes_with_its_last() {
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
        let taken = format!("{url}/monday");
        cowslip_remote::push(&other.file("monday"), &taken, None, &mut proceed).unwrap();
        let last = local.file("wednesday");
        let pushed = cowslip_remote::push(&last, &format!("{url}/"), None, &mut proceed).unwrap();
        assert_eq!(pushed.sent_images, 3);
        let again = cowslip_remote::push(&last, &format!("{url}/"), None, &mut proceed).unwrap();
        assert_eq!(again.sent_images, 1, "the others are there");

        let there = cowslip_remote::open(&format!("{url}/wednesday")).unwrap();
        assert_eq!(there.ancestors().len(), 2);
        there.verify(&mut proceed).unwrap();
        let restored = there.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
        assert!(restored.wait(PATIENCE).unwrap());
        assert!(words(restored.arena()) == &slice[..]);
        let back = Folder::new("chain");
        let from = format!("{url}/wednesday");
        let pulled = cowslip_remote::pull(&from, &back.file("wednesday"), &mut proceed).unwrap();
        assert_eq!(pulled.images, 3);
        Image::open(&back.file("wednesday")).unwrap().verify(&mut proceed).unwrap();
    }

    #[test]
    #[ignore = "run against each server"]
    fn a_program_saves_and_what_it_touches_is_recorded() {
        let (arena, mut slice) = arena(10, 4);
        let (first, second) = (folder("saved") + "/first", folder("saved") + "/second");
        let options = SaveOptions::default();
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        cowslip_remote::save(&[&frozen], &first, None, &options, &mut proceed).unwrap();
        drop(frozen);
        slice[3 * WORDS] = 5;
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        let saved = cowslip_remote::save(&[&frozen], &second, Some(&first), &options, &mut proceed);
        assert_eq!(saved.unwrap().chunks, 1);
        let there = cowslip_remote::open(&second).unwrap();
        let options = RestoreOptions { record: true, ..RestoreOptions::default() };
        match there.restore(0, &options, &mut proceed) {
            Ok(restored) => {
                assert_eq!(words(restored.arena())[3 * WORDS], 5);
                restored.finish_recording().unwrap();
                assert!(restored.wait(PATIENCE).unwrap());
                assert!(words(restored.arena()) == &slice[..]);
            }
            Err(error) => skip("userfaultfd", &error.to_string()),
        }
        let there = cowslip_remote::open(&second).unwrap();
        let restored = there.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
        assert!(restored.wait(PATIENCE).unwrap());
        assert!(words(restored.arena()) == &slice[..]);
    }

    #[test]
    #[ignore = "run against each server"]
    fn an_object_that_was_replaced_is_an_error_and_no_mixture() {
        let local = Folder::new("replaced");
        let [before, after] = ["before", "after"].map(|name| local.file(name));
        image(&before, 12, 7);
        image(&after, 12, 8);
        let url = folder("replaced") + "/store";
        cowslip_remote::push(&before, &url, None, &mut proceed).unwrap();
        let there = cowslip_remote::open(&url).unwrap();
        assert_eq!(wrong_words(&there, 3, 7).unwrap(), 0);
        cowslip_remote::push(&after, &url, None, &mut proceed).unwrap();
        for chunk in 3..12 {
            let error = there.read_chunk(0, chunk, &mut vec![0; CHUNK_BYTES]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Vanished, "{error}");
        }
        assert_eq!(wrong_words(&cowslip_remote::open(&url).unwrap(), 12, 8).unwrap(), 0);
    }

    #[test]
    #[ignore = "run against each server"]
    fn latest_is_the_youngest_of_those_who_publish_at_once() {
        let local = Folder::new("latest");
        let names: Vec<String> = (0..6).map(|i| format!("store-{i}")).collect();
        let images: Vec<Image> = names.iter().map(|name| image(&local.file(name), 2, 23)).collect();
        let url = folder("latest");
        let pointer = format!("{url}/latest");
        assert_eq!(cowslip_remote::read_latest(&pointer).unwrap(), None);
        for name in &names {
            let folder = format!("{url}/");
            cowslip_remote::push(&local.file(name), &folder, None, &mut proceed).unwrap();
        }
        // All at once, started from the youngest.
        std::thread::scope(|scope| {
            for (name, image) in names.iter().zip(&images).rev() {
                scope.spawn(|| cowslip_remote::set_latest(&pointer, name, image).unwrap());
            }
        });
        let latest = cowslip_remote::read_latest(&pointer).unwrap().unwrap();
        assert_eq!(latest.image, "store-5");
        let there = cowslip_remote::open(&pointer).unwrap();
        assert_eq!(there.identity(), images[5].identity());
        // An older one changes nothing, and a push returns the pointer's value.
        let older = local.file("store-2");
        let pushed = cowslip_remote::push(&older, &format!("{url}/"), Some("latest"), &mut proceed);
        assert_eq!(pushed.unwrap().latest.unwrap().image, "store-5");
        let listed = cowslip_remote::list(&url).unwrap();
        assert_eq!(listed.len(), 7, "{listed:?}");
        let pointers = listed.iter().filter(|object| matches!(object.kind, ListedKind::Pointer(_)));
        assert_eq!(pointers.count(), 1);
    }

    /// Tests the condition that pointers rely on with the server itself.
    #[test]
    #[ignore = "run against each server"]
    fn a_put_with_a_condition_is_refused_if_that_fails() {
        let Some(address) = is_s3() else { return };
        let target = format!("/{BUCKET}/condition");
        let put = |headers: &[(&str, &str)], body: &str| {
            let answer = ask_s3(address, "PUT", &target, headers, body);
            answer.split(' ').nth(1).unwrap().to_owned()
        };
        assert_eq!(put(&[("if-none-match", "*")], "first"), "200");
        assert_eq!(put(&[("if-none-match", "*")], "second"), "412");
        let first = ask_s3(address, "GET", &target, &[], "");
        assert!(first.ends_with("first"), "{first}");
        let tag = first.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("etag").then(|| value.to_owned())
        });
        let tag = tag.unwrap();
        let bare = tag.trim_matches('"');
        if put(&[("if-match", &tag)], "second") != "200" {
            assert_eq!(server(), "radosgw", "which compares with what is between the quotes");
            assert_eq!(put(&[("if-match", bare)], "second"), "200");
        }
        for tag in [&tag, bare] {
            assert_eq!(put(&[("if-match", tag)], "third"), "412");
        }
        assert!(ask_s3(address, "GET", &target, &[], "").ends_with("second"));
    }

    #[test]
    #[ignore = "run against each server"]
    fn folders_are_listed_without_what_is_in_others() {
        let local = Folder::new("listed");
        let file = local.file("store");
        let saved = image(&file, 2, 24);
        let url = folder("listed");
        for name in ["a/one", "a/two", "a/deeper/three", "ab/four"] {
            cowslip_remote::push(&file, &format!("{url}/{name}"), None, &mut proceed).unwrap();
        }
        let listed = cowslip_remote::list(&format!("{url}/a/")).unwrap();
        let names: Vec<_> = listed.iter().map(|image| image.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        assert!(listed.iter().all(|image| image.bytes == saved.summary().file_bytes));
        let wanted = saved.identity();
        let is_saved = |kind: &ListedKind| matches!(kind, ListedKind::Image { identity, .. } if *identity == wanted);
        assert!(listed.iter().all(|image| is_saved(&image.kind)), "{listed:?}");
        assert!(cowslip_remote::list(&folder("nothing-here")).unwrap().is_empty());
        let missing = cowslip_remote::open(&folder("nothing-here/store")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::File, "{missing}");
        assert!(missing.to_string().contains("no such object"), "{missing}");
    }

    /// Uploads of an object that have begun and not ended, as S3 lists them.
    fn uploads(address: SocketAddr, key: &str) -> Vec<String> {
        let listed = ask_s3(address, "GET", &format!("/{BUCKET}?uploads="), &[], "");
        assert!(listed.starts_with("HTTP/1.1 200"), "{listed}");
        let between = |text: &str, from: &str, to: &str| {
            Some(text.split_once(from)?.1.split_once(to)?.0.to_owned())
        };
        let uploads = listed.split("<Upload>").skip(1);
        let ours =
            uploads.filter(|upload| between(upload, "<Key>", "</Key>").as_deref() == Some(key));
        ours.map(|upload| between(upload, "<UploadId>", "</UploadId>").unwrap()).collect()
    }

    #[test]
    #[ignore = "run against each server"]
    fn an_upload_that_is_broken_off_leaves_nothing() {
        let local = Folder::new("broken");
        image(&local.file("store"), 24, 10);
        let url = folder("broken") + "/store";
        let has_parts = |address| {
            uploads(address, "broken/store").iter().any(|id| {
                let parts = format!("/{BUCKET}/broken/store?uploadId={id}");
                ask_s3(address, "GET", &parts, &[], "").contains("<PartNumber>")
            })
        };
        let mut steps = 0;
        let mut stop = |_| {
            steps += 1;
            if steps < 20 {
                return ControlFlow::Continue(());
            }
            let deadline = Instant::now() + PATIENCE;
            while let Some(address) = is_s3()
                && !has_parts(address)
            {
                assert!(Instant::now() < deadline, "no part was sent");
                std::thread::yield_now();
            }
            ControlFlow::Break(())
        };
        let error = cowslip_remote::push(&local.file("store"), &url, None, &mut stop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(cowslip_remote::list(&folder("broken")).unwrap().is_empty());
        let missing = cowslip_remote::open(&url).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::File, "{missing}");
        match is_s3() {
            Some(address) => assert_eq!(uploads(address, "broken/store"), [""; 0]),
            None => assert_eq!(server(), "azurite", "Azure drops blocks after a week, unasked"),
        }
        cowslip_remote::push(&local.file("store"), &url, None, &mut proceed).unwrap();
        assert_eq!(wrong_words(&cowslip_remote::open(&url).unwrap(), 24, 10).unwrap(), 0);
    }

    #[test]
    #[ignore = "run against each server"]
    fn two_who_push_to_one_name_leave_one_image() {
        let local = Folder::new("both");
        let url = folder("both") + "/store";
        let images = [31, 32].map(|seed| image(&local.file(&seed.to_string()), 10, seed));
        let pushed = std::thread::scope(|scope| {
            let push = |image: &Image| {
                let (path, url) = (image.path().to_owned(), url.clone());
                scope.spawn(move || cowslip_remote::push(&path, &url, None, &mut proceed))
            };
            let pushing = images.each_ref().map(push);
            pushing.map(|thread| thread.join().unwrap().map(drop))
        });
        assert!(pushed.iter().any(Result::is_ok), "{pushed:?}");
        let there = cowslip_remote::open(&url).unwrap();
        let which = images.iter().position(|image| image.identity() == there.identity()).unwrap();
        assert!(pushed[which].is_ok(), "{pushed:?}");
        assert_eq!(wrong_words(&there, 10, 31 + which as u64).unwrap(), 0);
    }

    #[test]
    #[ignore = "run against each server"]
    fn what_is_no_image_is_an_error() {
        let Some(address) = is_s3() else { return };
        for (name, content) in [("empty", ""), ("other", "not an image")] {
            let put = ask_s3(address, "PUT", &format!("/{BUCKET}/none/{name}"), &[], content);
            assert!(put.starts_with("HTTP/1.1 200"), "{put}");
            let began = Instant::now();
            let error = cowslip_remote::open(&folder(&format!("none/{name}"))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
            println!("{name}: {error} after {:?}", began.elapsed());
        }
        assert!(cowslip_remote::list(&folder("none")).unwrap().is_empty());
    }
}
