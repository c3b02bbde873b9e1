//! The middle of paired differences, against a count of all signs.

use cowslip_compare::stats::{Unusable, location};

/// The signed-rank test's p for the null hypothesis that the middle is `at`, by every combination of signs.
fn p_by_count(differences: &[f64], at: f64) -> f64 {
    let mut sorted: Vec<f64> = differences.iter().map(|difference| difference - at).collect();
    sorted.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let positive = |is_positive: &dyn Fn(usize) -> bool| -> usize {
        (0..sorted.len()).filter(|rank| is_positive(*rank)).map(|rank| rank + 1).sum()
    };
    let seen = positive(&|rank| sorted[rank] > 0.0);
    let all = sorted.len() * (sorted.len() + 1) / 2;
    let least = seen.min(all - seen);
    let extreme = (0..1u32 << sorted.len())
        .filter(|signs| positive(&|rank| signs >> rank & 1 == 1) <= least)
        .count();
    (2.0 * extreme as f64 / f64::from(1u32 << sorted.len())).min(1.0)
}

#[test]
fn the_interval_holds_what_the_test_does_not_reject() {
    let mut random = fastrand::Rng::with_seed(7);
    for count in [6, 9, 12] {
        for alpha in [0.05, 0.1] {
            let values: Vec<f64> = (0..count).map(|_| random.f64().powi(3) - 0.1).collect();
            let middle = location(&values, alpha).unwrap();
            let (low, high) = middle.interval.unwrap();
            assert!(low <= middle.value && middle.value <= high);
            for bound in [low, high] {
                let (inside, outside) = if bound == low {
                    (bound + 1e-9, bound - 1e-9)
                } else {
                    (bound - 1e-9, bound + 1e-9)
                };
                assert!(p_by_count(&values, inside) > alpha, "{values:?}: {inside}");
                assert!(p_by_count(&values, outside) <= alpha, "{values:?}: {outside}");
            }
        }
    }
}

#[test]
fn too_few_have_no_interval_and_nonsense_is_refused() {
    assert!(location(&[1.0; 5], 0.05).unwrap().interval.is_none());
    assert!(location(&[1.0; 6], 0.05).unwrap().interval.is_some());
    assert_eq!(location(&[], 0.05).unwrap_err(), Unusable::TooFew);
    assert_eq!(location(&[f64::NAN], 0.05).unwrap_err(), Unusable::NotFinite);
}
