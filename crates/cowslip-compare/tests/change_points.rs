//! Steps are found where they are, and series without one hardly ever have any.

use cowslip_compare::history::{change_points, smallest_step};
use fastrand::Rng;

const SERIES: u64 = 60;
const ENTRIES: usize = 200;
const ALPHA: f64 = 0.01;

/// A normal variate (Box and Muller 1958).
fn normal(random: &mut Rng) -> f64 {
    let (radius, angle) = (1.0 - random.f64(), random.f64());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

fn series(random: &mut Rng, entries: usize, level: impl Fn(usize) -> f64) -> Vec<f64> {
    (0..entries).map(|at| normal(random) + level(at)).collect()
}

fn places(values: &[f64]) -> Vec<usize> {
    change_points(values, ALPHA).iter().map(|point| point.at).collect()
}

#[test]
fn of_series_with_a_step_of_three_sigma_95_percent_show_it_at_its_place() {
    let (mut found, mut more) = (0, 0);
    for seed in 0..SERIES {
        let mut random = Rng::with_seed(seed);
        let step = random.usize(5..=ENTRIES - 5);
        let values = series(&mut random, ENTRIES, |at| if at < step { 0.0 } else { 3.0 });
        let places = places(&values);
        found += usize::from(places.iter().any(|place| place.abs_diff(step) <= 3));
        more += usize::from(places.len() > 1);
    }
    println!("{found} found at their place, {more} with further ones");
    assert!(found >= 57, "{found}");
    assert!(more <= 6, "{more}");
}

/// Less than one of 60 is expected.
#[test]
fn of_series_without_a_step_at_most_one_in_ten_has_a_change_point() {
    let with = |noise: fn(&mut Rng) -> f64, seeds: std::ops::Range<u64>| {
        let has_any = |seed: &u64| {
            let mut random = Rng::with_seed(*seed);
            let values: Vec<f64> = (0..ENTRIES).map(|_| noise(&mut random)).collect();
            !places(&values).is_empty()
        };
        seeds.filter(has_any).count()
    };
    let gaussian = with(normal, 1_000..1_000 + SERIES);
    // One in ten is far off, as on a busy machine.
    let outliers = with(
        |random| normal(random) + if random.f64() < 0.1 { 30.0 * random.f64() } else { 0.0 },
        2_000..2_000 + SERIES,
    );
    println!("{gaussian} of normal noise, {outliers} with outliers");
    assert!(gaussian <= 3 && outliers <= 3, "{gaussian} {outliers}");
}

#[test]
fn a_level_that_came_and_went_has_both_its_ends() {
    let mut both = 0;
    for seed in 0..20 {
        let mut random = Rng::with_seed(3_000 + seed);
        let bump = |at| if (100..120).contains(&at) { 3.0 } else { 0.0 };
        let places = places(&series(&mut random, ENTRIES, bump));
        both += usize::from(
            places.len() == 2 && places[0].abs_diff(100) <= 3 && places[1].abs_diff(120) <= 3,
        );
    }
    assert!(both >= 18, "{both}");
}

#[test]
fn the_newest_change_is_seen_after_a_few_entries_and_outliers_are_none() {
    let (mut soon, mut at_once) = (0, 0);
    for seed in 0..40 {
        let mut random = Rng::with_seed(4_000 + seed);
        let values = series(&mut random, 106, |at| if at < 100 { 0.0 } else { 4.0 });
        soon += usize::from(places(&values).iter().any(|place| place.abs_diff(100) <= 1));
        at_once += usize::from(!places(&values[..102]).is_empty());
    }
    println!("{soon} of 40 after six entries, {at_once} after two");
    assert!(soon >= 36, "{soon}");
    let mut values = series(&mut Rng::with_seed(5), 60, |_| 0.0);
    values[59] += 50.0;
    values[30] += 50.0;
    assert!(places(&values).is_empty());
}

#[test]
fn constant_and_short_series_have_none_and_a_step_of_constants_is_one() {
    assert!(places(&[]).is_empty() && places(&[1.0, 9.0]).is_empty());
    assert!(places(&[4.0; 50]).is_empty());
    let mut steps = vec![4.0; 30];
    steps[20..].fill(5.0);
    assert_eq!(places(&steps), [20]);
    assert_eq!(places(&steps[..23]), [20], "three new ones are enough");
}

/// The claimed step is found in as many series as claimed.
#[test]
fn the_smallest_step_is_seen_in_four_of_five_series() {
    let mut random = Rng::with_seed(9);
    for newer in [5, 30] {
        let level = series(&mut random, 60, |_| 100.0);
        let step = smallest_step(&level, newer, ALPHA).unwrap();
        let found = (0..100).filter(|_| {
            let new = |at| 100.0 + if at < 60 - newer { 0.0 } else { step };
            !places(&series(&mut random, 60, new)).is_empty()
        });
        let found = found.count();
        println!("a step of {step:.2} sigma before {newer} entries: {found} of 100");
        assert!((60..=95).contains(&found), "{found}");
    }
    assert_eq!(
        smallest_step(&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0], 3, ALPHA),
        None,
        "too few to see any"
    );
    assert_eq!(smallest_step(&[1.0; 9], 3, ALPHA), None);
}
