//! Two modes within a sample: false alarms and power, on random samples with fixed seeds.

use cowslip_compare::stats::Modes;
use fastrand::Rng;

/// Draws a value.
type Draw<'a> = &'a dyn Fn(&mut Rng) -> f64;

const ALPHA: f64 = 0.05;

fn normal(random: &mut Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// The share of samples that are said to have two modes.
fn found(samples: u32, count: u32, mut value: impl FnMut(&mut Rng, u32) -> f64) -> f64 {
    let mut random = Rng::with_seed(2_026);
    let has_two = |_: &u32| {
        let sample: Vec<f64> = (0..count).map(|index| value(&mut random, index)).collect();
        Modes::from_values(&sample, ALPHA).is_some()
    };
    f64::from((0..samples).filter(has_two).count() as u32) / f64::from(samples)
}

#[test]
fn one_mode_of_any_shape_is_taken_for_two_in_at_most_five_percent() {
    let student = |random: &mut Rng, degrees: u32| {
        let squares: f64 = (0..degrees).map(|_| normal(random).powi(2)).sum();
        normal(random) / (squares / f64::from(degrees)).sqrt()
    };
    let kinds: [(&str, Draw<'_>); 8] = [
        ("normal", &normal),
        ("lognormal, 0.3", &|random| (0.3 * normal(random)).exp()),
        ("lognormal, 1", &|random| normal(random).exp()),
        ("Student's t, 2", &|random| student(random, 2)),
        ("Cauchy's", &|random| student(random, 1)),
        ("exponential", &|random| 0.4 - 0.01 * (1.0 - random.f64()).ln()),
        ("uniform", &|random| random.f64()),
        ("outliers", &|random| normal(random) * if random.f64() < 0.1 { 20.0 } else { 1.0 }),
    ];
    for (count, at) in [(20, &[0, 1, 2, 3, 4, 5, 6, 7][..]), (10, &[5, 6]), (40, &[2, 5, 6])] {
        for (name, value) in at.iter().map(|at| kinds[*at]) {
            let share = found(500, count, |random, _| value(random));
            println!("{count} values, {name}: {share}");
            // Three standard deviations of a share of 5 % in five hundred.
            assert!(share <= ALPHA + 0.029, "{count} {name}: {share}");
        }
    }
}

#[test]
fn two_modes_are_found_the_more_often_the_further_apart_they_are() {
    for (count, lower, apart, least) in [
        (20, 14, 4.0, 0.03),
        (20, 14, 6.0, 0.55),
        (20, 16, 6.0, 0.55),
        (20, 10, 8.0, 0.93),
        (40, 28, 5.0, 0.75),
    ] {
        let share = found(100, count, |random, index| {
            normal(random) + if index < lower { 0.0 } else { apart }
        });
        println!("{lower} of {count}, {apart} apart: {share}");
        assert!(share >= least, "{lower} of {count}, {apart} apart: {share}");
    }
}

#[test]
fn the_groups_are_those_that_the_sample_was_made_of() {
    let mut random = Rng::with_seed(5);
    let near = |random: &mut Rng, middle: f64| middle + 0.01 * normal(random);
    let mut values: Vec<f64> = (0..14).map(|_| near(&mut random, 0.41)).collect();
    values.extend((0..6).map(|_| near(&mut random, 0.58)));
    random.shuffle(&mut values);
    let modes = Modes::from_values(&values, ALPHA).unwrap();
    assert_eq!(modes.counts, (14, 6));
    assert!((modes.near.0 - 0.41).abs() < 0.01 && (modes.near.1 - 0.58).abs() < 0.01, "{modes:?}");
    assert!((0.45..0.54).contains(&modes.between) && modes.p < 0.01, "{modes:?}");
    // An outlier or two are no mode, nor are equal values, or few.
    assert_eq!(Modes::from_values(&[1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 9.0, 9.1], ALPHA), None);
    assert_eq!(Modes::from_values(&[1.0; 20], ALPHA), None);
    assert_eq!(Modes::from_values(&[1.0, 1.0, 1.0, 9.0, 9.0, 9.0], ALPHA), None);
    assert_eq!(
        Modes::from_values(&[1.0, 1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0], ALPHA).unwrap().counts,
        (5, 3)
    );
}
