//! False alarms of a session that ends by the width of its interval, beside one that ends by p.

use cowslip_compare::stats::{Moments, Welch, relative_change};
use fastrand::Rng;

const SESSIONS: u32 = 2_000;
const FEWEST: usize = 10;
const MOST: usize = 100;

/// The share of sessions of equal commands with p below 5 % at their end.
fn alarms(ends: impl Fn(&Welch, f64) -> bool) -> f64 {
    let mut random = Rng::with_seed(21);
    let mut run = || {
        let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
        1.0 + 0.05 * radius * (std::f64::consts::TAU * random.f64()).cos()
    };
    let mut session = || {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        loop {
            good.push(run());
            bad.push(run());
            if good.len() < FEWEST {
                continue;
            }
            let [one, other] = [&good, &bad].map(|side| Moments::from_values(side).unwrap());
            let welch = Welch::new(&one, &other, 0.05).unwrap();
            let change = relative_change(&one, &other, &welch, 0.05).unwrap();
            let (low, high) = change.interval.unwrap();
            if ends(&welch, high - low) || good.len() == MOST {
                return welch.p < 0.05;
            }
        }
    };
    f64::from((0..SESSIONS).filter(|_| session()).count() as u32) / f64::from(SESSIONS)
}

#[test]
fn an_end_by_precision_has_no_more_false_alarms_and_one_by_p_has() {
    let by_precision = alarms(|_, width| width < 0.06);
    let by_p = alarms(|welch, _| welch.p < 0.05);
    println!("by precision {by_precision}, by p {by_p}");
    // The variance is a little too small where it ended the session: 6 %. Three standard deviations in 2,000 on top.
    assert!(by_precision <= 0.076, "{by_precision}");
    assert!(by_p > 0.15, "{by_p}");
}
