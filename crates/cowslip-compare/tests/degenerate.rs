//! Samples that break careless formulae.

use cowslip_compare::inputs::Run;
use cowslip_compare::stats::{
    Autocorrelation, Moments, RankTest, Unusable, Welch, adjusted, hedges_g, power,
    relative_change, runs_needed, two_sided_p, two_sided_quantile,
};
use cowslip_compare::{Options, compare};

fn moments(values: &[f64]) -> Moments {
    Moments::from_values(values).unwrap()
}

#[test]
fn what_cannot_be_tested_is_refused_with_the_reason() {
    let reason = |values: &[f64]| Moments::from_values(values).unwrap_err();
    assert_eq!(reason(&[]), Unusable::TooFew);
    assert_eq!(reason(&[1.0]), Unusable::TooFew);
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX] {
        assert_eq!(reason(&[1.0, value]), Unusable::NotFinite);
    }
    let (three, four) = (moments(&[3.0; 4]), moments(&[4.0; 4]));
    assert_eq!(Welch::new(&three, &four, 0.05).unwrap_err(), Unusable::NoVariation);
    assert_eq!(RankTest::new(&[], &[1.0]).unwrap_err(), Unusable::TooFew);
    assert_eq!(RankTest::new(&[f64::NAN], &[1.0]).unwrap_err(), Unusable::NotFinite);
    assert!(two_sided_p(f64::NAN, 3.0).is_nan() && two_sided_p(1.0, 0.0).is_nan());
    assert!(two_sided_quantile(0.0, 3.0).is_nan() && two_sided_quantile(0.1, -1.0).is_nan());
    assert_eq!((two_sided_p(0.0, 3.0), two_sided_p(f64::INFINITY, 3.0)), (1.0, 0.0));
    assert_eq!(two_sided_quantile(1.0, 3.0), 0.0);
    assert_eq!(Autocorrelation::from_values(&[5.0; 10]), None);
    assert_eq!(adjusted(&[]), Vec::<f64>::new());
}

#[test]
fn an_offset_does_not_change_the_test() {
    let (good, bad) = ([1.0, 2.0, 4.0, 8.0], [3.0, 5.0, 9.0, 11.0]);
    let t = |offset: f64| {
        let [good, bad] = [good, bad].map(|side| moments(&side.map(|value| value + offset)));
        Welch::new(&good, &bad, 0.05).unwrap().t
    };
    for offset in [1e6, -1e12, 9e15 - 16.0] {
        assert_eq!(t(offset), t(0.0), "{offset}");
    }
    // The sums of squares overflow or vanish without care.
    let scaled = |factor: f64| {
        let [good, bad] = [good, bad].map(|side| moments(&side.map(|value| value * factor)));
        Welch::new(&good, &bad, 0.05).unwrap().t
    };
    assert_eq!((scaled(2_f64.powi(400)), scaled(2_f64.powi(-400))), (t(0.0), t(0.0)));
}

#[test]
fn equal_samples_are_as_alike_as_can_be() {
    let values = [1.0, 5.0, 2.0, 9.0];
    let side = moments(&values);
    let welch = Welch::new(&side, &side, 0.05).unwrap();
    assert_eq!((welch.t, welch.p, welch.difference), (0.0, 1.0, 0.0));
    assert_eq!(RankTest::new(&values, &values).unwrap().p, 1.0);
    let effect = hedges_g(&side, &side, &welch, 0.05);
    let (low, high) = effect.interval.unwrap();
    assert!(effect.value == 0.0 && (low + high).abs() < 1e-6 && low < -1.0);
    assert_eq!(runs_needed(&side, &side, 0.0, 0.05), None);
    // Without an effect a test finds one with the probability of its level.
    assert!((power(0.0, 6.0, 0.05) - 0.05).abs() < 1e-9);
}

/// The factor Γ(ν'/2) / (√(ν'/2) Γ((ν' − 1)/2)) of Delacre et al. (2021), and the rest of their formula.
#[test]
fn the_effect_is_the_published_formula_also_with_hardly_a_degree_of_freedom() {
    let variance = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (mean, squares / (values.len() - 1) as f64)
    };
    let formula = |good: &[f64], bad: &[f64]| {
        let ((m1, v1), (m2, v2)) = (variance(good), variance(bad));
        let part = |v: f64, values: &[f64]| v * v / (values.len() - 1) as f64;
        let df = (v1 + v2).powi(2) / (part(v1, good) + part(v2, bad));
        let factor = libm::tgamma(df / 2.0) / ((df / 2.0).sqrt() * libm::tgamma((df - 1.0) / 2.0));
        (df, (m2 - m1) / ((v1 + v2) / 2.0).sqrt() * factor)
    };
    let mut fewest = f64::INFINITY;
    for (good, bad) in [
        (&[1.0, 1.001][..], &[3.0, 5.0][..]),
        (&[1.0, 1.3], &[3.0, 5.0]),
        (&[1.0, 2.0], &[5.0, 4.0]),
        (&[7.0, 7.5, 7.2], &[5.0, 40.0]),
        (&[1.0, 2.0, 4.0, 3.0], &[5.0, 9.0, 7.0]),
    ] {
        let (df, wanted) = formula(good, bad);
        fewest = fewest.min(df);
        let (good, bad) = (moments(good), moments(bad));
        let effect = hedges_g(&good, &bad, &Welch::new(&good, &bad, 0.05).unwrap(), 0.05);
        assert!((effect.value / wanted - 1.0).abs() < 1e-9, "{df}: {} {wanted}", effect.value);
        let (low, high) = effect.interval.unwrap();
        assert!(low <= effect.value && effect.value <= high, "{low} to {high}");
    }
    assert!(fewest < 1.001, "{fewest}");
    let (good, bad) = (moments(&[1.0, 1.0]), moments(&[3.0, 5.0]));
    let effect = hedges_g(&good, &bad, &Welch::new(&good, &bad, 0.05).unwrap(), 0.05);
    assert_eq!((effect.value, effect.interval), (0.0, None), "one degree of freedom");
}

#[test]
fn a_relative_change_has_bounds_only_if_the_good_mean_is_not_zero() {
    let change = |good: &[f64], bad: &[f64]| {
        let (good, bad) = (moments(good), moments(bad));
        let welch = Welch::new(&good, &bad, 0.05).unwrap();
        relative_change(&good, &bad, &welch, 0.05)
    };
    let twice = change(&[10.0, 11.0, 9.0], &[20.0, 22.0, 18.0]).unwrap();
    let (low, high) = twice.interval.unwrap();
    assert!((twice.value - 1.0).abs() < 1e-12 && low > 0.5 && high < 2.0, "{low} to {high}");
    let falls = change(&[-10.0, -11.0, -9.0], &[-20.0, -22.0, -18.0]).unwrap();
    assert_eq!((falls.value, falls.interval), (-1.0, Some((-high, -low))));
    assert!(change(&[-1.0, 1.0, 0.5], &[5.0, 6.0, 7.0]).unwrap().interval.is_none());
    assert!(change(&[-1.0, 1.0], &[5.0, 6.0]).is_none());
}

#[test]
fn a_discovery_takes_more_than_constants_of_a_few_runs() {
    let run = |value: f64| Run::new("run").with("level", value);
    let two = compare(&[run(1.0), run(1.0)], &[run(2.0), run(2.0)], &Options::default()).unwrap();
    assert!(!two.differs() && two.rows[0].welch.is_none(), "p {}", two.rows[0].p);
    let ten = [vec![run(1.0); 10], vec![run(2.0); 10]];
    assert!(compare(&ten[0], &ten[1], &Options::default()).unwrap().differs());
}
