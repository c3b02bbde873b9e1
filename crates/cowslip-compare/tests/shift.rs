//! Hodges and Lehmann's shift: its interval has the shifts that the rank test does not reject.

use cowslip_compare::stats::{RankTest, shift};
use fastrand::Rng;

#[test]
fn the_interval_has_the_shifts_that_the_rank_test_does_not_reject() {
    let mut random = Rng::with_seed(11);
    for (n1, n2) in [(4, 4), (5, 9), (8, 8), (8, 20), (10, 10), (12, 30)] {
        for alpha in [0.05, 0.2] {
            let first: Vec<f64> = (0..n1).map(|_| random.f64()).collect();
            let second: Vec<f64> = (0..n2).map(|_| 0.3 + 2.0 * random.f64()).collect();
            let (low, high) = shift(&first, &second, alpha).unwrap().interval.unwrap();
            let p = |by: f64| {
                let back: Vec<f64> = second.iter().map(|value| value - by).collect();
                RankTest::new(&first, &back).unwrap().p
            };
            let near = 1e-9;
            for (inside, outside) in [(low + near, low - near), (high - near, high + near)] {
                assert!(p(inside) >= alpha && p(outside) < alpha, "{n1} {n2} {alpha}");
            }
        }
    }
}

#[test]
fn it_covers_the_true_shift_and_outliers_hardly_move_it() {
    let mut random = Rng::with_seed(12);
    let mut covered = 0;
    for _ in 0..1_000 {
        let mut side =
            |by: f64| -> Vec<f64> { (0..10).map(|_| by - (1.0 - random.f64()).ln()).collect() };
        let (first, second) = (side(0.0), side(1.0));
        let (low, high) = shift(&first, &second, 0.05).unwrap().interval.unwrap();
        covered += u32::from(low <= 1.0 && 1.0 <= high);
    }
    assert!((935..=985).contains(&covered), "{covered}");
    let first: Vec<f64> = (0..10).map(f64::from).collect();
    let mut second: Vec<f64> = first.iter().map(|value| value + 3.0).collect();
    second[9] = 1e6;
    assert!((shift(&first, &second, 0.05).unwrap().value - 3.0).abs() < 1.01);
    assert!(shift(&[1.0], &[2.0], 0.05).unwrap().interval.is_none());
    assert!(shift(&[], &[2.0], 0.05).is_none());
}
