//! Series in files, and their analysis by machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::thread;

use cowslip_compare::history::{Entry, SCHEMA, Series, Settings, Store, analyse};
use cowslip_compare::inputs::Run;
use cowslip_compare::{Certainty, ErrorKind, TimePart};
use fastrand::Rng;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cowslip-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn facts(kernel: &str) -> BTreeMap<String, String> {
    let all =
        [("cpu.model", "A"), ("cpu.count", "2"), ("kernel", kernel), ("thp.enabled", "always")];
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn entry(kernel: &str, seconds: f64) -> Entry {
    let runs =
        [1.0, 1.01, 0.99].map(|factor| Run::new("a run").with("wall_seconds", factor * seconds));
    Entry::from_runs(&runs, &facts(kernel), 7).unwrap()
}

fn noise(random: &mut Rng) -> f64 {
    1.0 + 0.01 * (random.f64() + random.f64() - 1.0)
}

#[test]
fn what_was_added_is_read_and_names_are_those_given() {
    let folder = Folder::new("history-names");
    let store = Store::new(&folder.0.join("made"));
    let names = ["sort", "sort/a b", "sort/../../x[1]", "Ünicode::é", ".hidden"];
    for name in names {
        assert_eq!(store.append(name, &entry("6", 1.0), &|| false).unwrap(), 1);
        assert_eq!(store.append(name, &entry("6", 2.0), &|| false).unwrap(), 2);
        let file = store.file(name).unwrap();
        assert!(file.is_file() && file.parent() == Some(&folder.0.join("made")), "{file:?}");
    }
    let family = store.read("sort").unwrap();
    let of_family: Vec<&str> = family.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(of_family, ["sort", "sort/../../x[1]", "sort/a b"]);
    assert_eq!(family[0].entries, [entry("6", 1.0), entry("6", 2.0)]);
    assert_eq!(store.read(".hidden").unwrap()[0].entries.len(), 2);
    let error = store.read("sor").unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("but .hidden, sort"));
    for name in ["", &"x".repeat(201)] {
        assert_eq!(
            store.append(name, &entry("6", 1.0), &|| false).unwrap_err().kind(),
            ErrorKind::Usage
        );
    }
    let none = Store::new(&folder.0.join("nowhere")).read("a").unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Io(std::io::ErrorKind::NotFound));
}

#[test]
fn two_writers_lose_nothing() {
    let folder = Folder::new("history-writers");
    let write = |first: u32| {
        let store = Store::new(&folder.0);
        for number in 0..25 {
            store.append("a", &entry("6", f64::from(first + number)), &|| false).unwrap();
        }
    };
    thread::scope(|scope| [100, 200].map(|first| scope.spawn(move || write(first))).map(drop));
    let mut values: Vec<f64> = Store::new(&folder.0).read("a").unwrap()[0]
        .entries
        .iter()
        .map(|entry| entry.metrics["wall_seconds"][0])
        .collect();
    values.sort_by(f64::total_cmp);
    let wanted: Vec<f64> = (100..125).chain(200..225).map(f64::from).collect();
    assert_eq!(values, wanted);
}

#[test]
fn a_torn_line_is_left_out_and_replaced_and_other_damage_is_refused() {
    let folder = Folder::new("history-torn");
    let store = Store::new(&folder.0);
    for seconds in [1.0, 2.0] {
        store.append("a", &entry("6", seconds), &|| false).unwrap();
    }
    let file = store.file("a").unwrap();
    let whole = fs::read_to_string(&file).unwrap();
    let first = whole.find('\n').unwrap() + 1;
    for end in [whole.len() - 1, whole.len() - 2, first + 9, first] {
        fs::write(&file, &whole[..end]).unwrap();
        let kept = if end == whole.len() - 1 { 2 } else { 1 };
        assert_eq!(store.read("a").unwrap()[0].entries.len(), kept, "{end}");
        store.append("a", &entry("6", 3.0), &|| false).unwrap();
        let entries = &store.read("a").unwrap()[0].entries;
        assert_eq!((entries.len(), entries.last()), (kept + 1, Some(&entry("6", 3.0))));
    }
    for (from, to, said) in
        [("history/1", "history/2", "its schema is cowslip.history/2"), ("{", "", "line 1")]
    {
        let damaged = whole.replacen(from, to, 1);
        fs::write(&file, &damaged).unwrap();
        for error in [
            store.read("a").unwrap_err(),
            store.append("a", &entry("6", 1.0), &|| false).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(said), "{error}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), damaged, "it is not touched");
    }
}

#[test]
fn facts_of_this_machine_are_not_those_of_runs_of_another() {
    let of = |facts: &[(&str, &str)]| {
        let mut run = Run::new("a run").with("wall_seconds", 1.0).with("cpu.user_share", 0.5);
        let facts = facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        run.facts = std::sync::Arc::new(facts.collect());
        Entry::from_runs(&[run], &self::facts("6"), 0).unwrap()
    };
    let here = of(&[("command", "x"), ("cpu.count", "2"), ("commit", "abc")]);
    assert_eq!((here.schema.as_str(), here.commit.as_deref()), (SCHEMA, Some("abc")));
    assert_eq!((&*here.facts["kernel"], &*here.facts["command"]), ("6", "x"));
    assert!(!here.facts.contains_key("commit"));
    assert_eq!(here.metrics.keys().collect::<Vec<_>>(), ["wall_seconds"], "not the machine's");
    let elsewhere = of(&[("cpu.count", "64")]);
    assert_eq!(elsewhere.facts, BTreeMap::from([("cpu.count".to_owned(), "64".to_owned())]));
    let error = Entry::from_runs(&[Run::new("a run")], &self::facts("6"), 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[test]
fn machines_are_separate_unless_the_fact_that_differs_is_ignored() {
    let mut random = Rng::with_seed(1);
    let entries: Vec<Entry> = (0..60)
        .map(|at| {
            let (kernel, level) = if at < 40 { ("6.1", 1.0) } else { ("6.12", 1.2) };
            entry(kernel, level * noise(&mut random))
        })
        .collect();
    let series = Series { name: "a".to_owned(), entries };
    let apart = analyse(&series, &Settings::default()).unwrap();
    let sizes: Vec<usize> = apart.groups.iter().map(|group| group.points.len()).collect();
    assert_eq!(sizes, [20, 40], "the newest machine comes first");
    assert_eq!(apart.groups[0].machine["kernel"], "6.12");
    assert_eq!(apart.groups[0].points[0].number, 41);
    assert!(apart.groups.iter().all(|group| group.changes.is_empty() && group.newest.is_none()));
    let ignored = vec!["kernel".to_owned()];
    let together =
        analyse(&series, &Settings { ignored, newest: 20, ..Settings::default() }).unwrap();
    let [group] = &together.groups[..] else { panic!("{:?}", together.groups.len()) };
    let [change] = &group.changes[..] else { panic!("{:?}", group.changes) };
    assert_eq!(change.at, 40);
    let kernels = change.facts["kernel"].clone();
    assert_eq!(kernels, (Some("6.1".to_owned()), Some("6.12".to_owned())));
    let estimate = change.change.unwrap();
    let (low, high) = estimate.interval.unwrap();
    assert!(low < 0.2 && 0.2 < high && (estimate.value - 0.2).abs() < 0.01, "{estimate:?}");
    assert_eq!(group.newest.as_ref().map(|change| change.at), Some(40));
}

#[test]
fn the_newest_change_is_from_the_level_before_the_newest_entries() {
    let mut random = Rng::with_seed(2);
    let mut of = |levels: &[(usize, f64)], newest: usize| {
        let values = levels.iter().flat_map(|(count, level)| vec![*level; *count]);
        let entries = values.map(|level| entry("6", level * noise(&mut random))).collect();
        let series = Series { name: "a".to_owned(), entries };
        let history = analyse(&series, &Settings { newest, ..Settings::default() }).unwrap();
        let group = &history.groups[0];
        (group.changes.len(), group.newest.as_ref().map(|change| change.change.unwrap().value))
    };
    assert_eq!(of(&[(40, 1.0), (20, 1.1)], 10), (1, None), "it is known for longer");
    let (changes, newest) = of(&[(40, 1.0), (8, 1.1)], 10);
    assert!(changes == 1 && (newest.unwrap() - 0.1).abs() < 0.01, "{newest:?}");
    let (changes, newest) = of(&[(40, 1.0), (12, 1.1), (12, 1.2)], 24);
    assert!(changes == 2 && (newest.unwrap() - 0.2).abs() < 0.01, "{newest:?}");
    let (changes, newest) = of(&[(40, 1.0), (12, 1.1), (12, 1.0)], 24);
    assert!(changes == 2 && newest.unwrap().abs() < 0.01, "{newest:?}");
}

#[test]
fn a_metric_is_chosen_or_the_only_one_and_entries_without_it_are_counted() {
    let mut with = entry("6", 1.0);
    with.metrics.insert("faults".to_owned(), vec![3.0]);
    let series = |entries: Vec<Entry>| Series { name: "a".to_owned(), entries };
    let by = |metric: &str| Settings { metric: Some(metric.to_owned()), ..Settings::default() };
    let both = series(vec![with.clone(), entry("6", 1.0)]);
    assert_eq!(analyse(&both, &Settings::default()).unwrap().metric, "wall_seconds");
    let history = analyse(&both, &by("faults")).unwrap();
    assert_eq!((history.left_out, history.groups[0].points[0].value), (1, 3.0));
    let error = analyse(&both, &by("none")).unwrap_err();
    assert!(error.to_string().contains("faults, wall_seconds"), "{error}");
    with.metrics.remove("wall_seconds");
    assert_eq!(analyse(&series(vec![with]), &Settings::default()).unwrap().metric, "faults");
}

/// Drifts of a tenth in a hundred entries, as a line and as stairs, and series without one.
#[test]
fn slow_drifts_are_found_and_hardly_any_in_series_without_one() {
    let find = |seed: u64, level: &dyn Fn(usize) -> f64| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut noise = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let entries: Vec<Entry> =
            (0..120).map(|at| entry("6", level(at) * (1.0 + 0.015 * noise()))).collect();
        let history =
            analyse(&Series { name: "a".to_owned(), entries }, &Settings::default()).unwrap();
        history.groups[0].drift
    };
    let line = |at: usize| 1.0 + 0.001 * at as f64;
    let stairs = |at: usize| 1.0 + 0.03 * (at / 30) as f64;
    let (mut lines, mut steps, mut false_ones, mut known) = (0, 0, 0, 0);
    for seed in 0..8 {
        lines += usize::from(
            find(seed, &line).is_some_and(|drift| (0.06..0.18).contains(&drift.change)),
        );
        steps += usize::from(find(100 + seed, &stairs).is_some());
        known += usize::from(find(200 + seed, &|at| if at < 60 { 1.0 } else { 1.1 }).is_some());
    }
    for seed in 0..30 {
        false_ones += usize::from(find(300 + seed, &|_| 1.0).is_some());
    }
    println!(
        "{lines} and {steps} of 8 found; {known} of 8 steps, {false_ones} of 30 constant ones"
    );
    assert!(lines == 8 && steps >= 7, "{lines} {steps}");
    assert!(known == 0 && false_ones <= 1, "{known} {false_ones}");
}

#[test]
fn a_step_has_the_counters_that_explain_it() {
    let mut random = Rng::with_seed(5);
    let mut entry = |system: f64, faults: f64| {
        let system = system * noise(&mut random);
        let run = Run::new("a run")
            .with("wall_seconds", 0.5 + system)
            .with("rusage.user_seconds", 0.5)
            .with("rusage.system_seconds", system)
            .with("rusage.minor_faults", faults);
        Entry::from_runs(&[run.clone(), run], &facts("6"), 7).unwrap()
    };
    let mut entries: Vec<Entry> = (0..20).map(|_| entry(0.1, 1e3)).collect();
    entries.extend((0..20).map(|_| entry(0.2, 2e5)));
    let series = Series { name: "a".to_owned(), entries };
    let history = analyse(&series, &Settings { effect: 0.05, ..Settings::default() }).unwrap();
    let [change] = &*history.groups[0].changes else { panic!("{:?}", history.groups[0].changes) };
    let cause = &change.causes[0];
    assert_eq!((cause.part, &*cause.counter), (TimePart::System, "rusage.minor_faults"));
    assert_eq!(cause.certainty, Certainty::Certain);
    assert!(cause.share > 0.5, "{cause:?}");
}
