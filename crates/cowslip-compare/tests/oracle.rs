//! The statistics against SciPy's answers, or mpmath's where SciPy lost digits (`tests/data/generate.py`).

use cowslip_compare::stats::{self, Moments, RankTest, Welch};
use serde_json::Value;

/// The greatest relative error allowed.
const CLOSE: f64 = 1e-12;

#[derive(Default)]
struct Worst(f64, String);

impl Worst {
    fn see(&mut self, ours: f64, theirs: f64, case: impl Fn() -> String) {
        let error = if ours == theirs { 0.0 } else { ((ours - theirs) / theirs).abs() };
        if error.is_nan() || error > self.0 {
            *self = Self(if error.is_nan() { f64::INFINITY } else { error }, case());
        }
    }

    fn check(self, what: &str, most: f64) {
        println!("{what}: at most {:.1e} off, {}", self.0, self.1);
        assert!(self.0 <= most, "{what}: {:e} off, {}", self.0, self.1);
    }
}

fn rows(text: &str) -> Vec<Vec<f64>> {
    let number = |word: &str| word.parse().ok();
    text.lines().map(|line| line.split(' ').filter_map(number).collect()).collect()
}

#[test]
fn tails_of_student() {
    let mut worst = Worst::default();
    let cases = rows(include_str!("data/student.txt"));
    assert!(cases.len() >= 2_000 && cases.iter().any(|case| case[2] < 1e-190));
    for case in cases {
        worst.see(stats::two_sided_p(case[1], case[0]), case[2], || format!("{case:?}"));
    }
    worst.check("p of t", CLOSE);
}

#[test]
fn quantiles_of_student() {
    let mut worst = Worst::default();
    for case in rows(include_str!("data/quantile.txt")) {
        worst.see(stats::two_sided_quantile(case[1], case[0]), case[2], || format!("{case:?}"));
    }
    worst.check("t of p", CLOSE);
}

#[test]
fn welch_and_ranks_of_samples() {
    let names = ["t", "df", "p", "low", "high", "u", "rank_p"];
    let mut worst: [Worst; 7] = Default::default();
    let mut exact = 0;
    for line in include_str!("data/samples.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let side = |name: &str| -> Vec<f64> { serde_json::from_value(case[name].clone()).unwrap() };
        let (good, bad) = (side("good"), side("bad"));
        let moments = [&good, &bad].map(|side| Moments::from_values(side).unwrap());
        let welch = Welch::new(&moments[0], &moments[1], 0.05).unwrap();
        let rank = RankTest::new(&good, &bad).unwrap();
        exact += usize::from(rank.is_exact);
        let ours =
            [welch.t, welch.degrees, welch.p, welch.interval.0, welch.interval.1, rank.u, rank.p];
        for ((name, ours), worst) in names.iter().zip(ours).zip(&mut worst) {
            worst.see(ours, case[*name].as_f64().unwrap(), || line.to_owned());
        }
    }
    assert!(exact > 100, "both methods are used: {exact}");
    for (name, worst) in names.iter().zip(worst) {
        worst.check(name, CLOSE);
    }
}

#[test]
fn false_discovery_rates() {
    let mut worst = Worst::default();
    for line in include_str!("data/families.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let of = |name: &str| -> Vec<f64> { serde_json::from_value(case[name].clone()).unwrap() };
        for (ours, theirs) in stats::adjusted(&of("p")).into_iter().zip(of("adjusted")) {
            worst.see(ours, theirs, || line.to_owned());
        }
    }
    worst.check("adjusted p", CLOSE);
}

#[test]
fn the_noncentral_distribution() {
    for case in rows(include_str!("data/noncentral.txt")) {
        let ours = stats::noncentral_cdf(case[2], case[0], case[1]);
        assert!((ours - case[3]).abs() < 1e-9, "{case:?}: {ours}");
    }
}

#[test]
fn effects_and_power() {
    let names = ["g", "g_low", "g_high", "change_low", "change_high", "detectable"];
    let mut worst: [Worst; 6] = Default::default();
    let text = include_str!("data/effects.jsonl");
    assert_eq!(text.lines().count(), 40);
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let side = |name: &str| -> Vec<f64> { serde_json::from_value(case[name].clone()).unwrap() };
        let [good, bad] = ["good", "bad"].map(|name| Moments::from_values(&side(name)).unwrap());
        let welch = Welch::new(&good, &bad, 0.05).unwrap();
        let g = stats::hedges_g(&good, &bad, &welch, 0.05);
        let change = stats::relative_change(&good, &bad, &welch, 0.05).unwrap().interval.unwrap();
        let (low, high) = g.interval.unwrap();
        let detectable = stats::detectable_difference(&welch, 0.05);
        let ours = [g.value, low, high, change.0, change.1, detectable];
        for ((name, ours), worst) in names.iter().zip(ours).zip(&mut worst) {
            worst.see(ours, case[*name].as_f64().unwrap(), || line.to_owned());
        }
        let runs = stats::runs_needed(&good, &bad, welch.difference, 0.05)
            .map_or(200, |runs| runs.min(200));
        assert_eq!(Some(u64::from(runs)), case["runs"].as_u64(), "{line}");
    }
    for (name, worst) in names.iter().zip(worst) {
        worst.check(name, 1e-6);
    }
}
