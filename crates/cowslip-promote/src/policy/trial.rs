//! The plan of a measurement of the gain, and its evaluation.
//!
//! A block is two pairs of periods, one period with huge pages and one without, as ABBA or BAAB by chance: a load that
//! grows evenly changes one pair as much as it changes the other in the opposite direction. If huge pages change
//! nothing, chance makes a pair's change as probable as its opposite, whatever the load does: that is all that the
//! interval of [`location`] assumes, which a few wild pairs do not move far.
//!
//! The interval is looked at again and again, each time with a part of the allowed error ([`LOOKS`]). The parts add up
//! to it: no assumption about the looks' dependence is needed (Bonferroni's inequality; Lan and DeMets, 1983, for parts
//! that are not equal). The first look can do no better than 2 in 2^8, the chance that all pairs agree.

use cowslip_compare::stats::{Estimate, location};

use crate::model::{Pair, Spent, Unclear, Verdict};

/// The numbers of pairs after which they are evaluated, with the probability that the interval misses the truth then.
const LOOKS: [(usize, f64); 10] = [
    (8, FIRST),
    (10, LATER),
    (12, LATER),
    (16, LATER),
    (20, LATER),
    (28, LATER),
    (40, LATER),
    (56, LATER),
    (80, LATER),
    (128, LATER),
];
/// The allowed probability of an interval that misses the truth, at all looks together: half of it on either side.
const ALPHA: f64 = 0.05;
const FIRST: f64 = 2.0 / 256.0;
const LATER: f64 = (ALPHA - FIRST) / 9.0;
/// The most blocks.
pub(crate) const MOST_BLOCKS: usize = LOOKS[LOOKS.len() - 1].0 / 2;
/// More blocks without a result end it.
const MOST_VOID: usize = 8;
/// Standard deviation of the load, in parts of its mean, from which it is not steady.
const UNSTEADY: f64 = 0.1;
/// A thread that runs, or waits for a processor, for this part of the time does all the work that it can.
const SATURATED: f64 = 0.9;
/// A process that runs for a smaller part of the time is idle.
const IDLE: f64 = 0.01;

/// True for each period of a block that has huge pages.
pub(crate) fn order(begins_huge: bool) -> [bool; 4] {
    [begins_huge, !begins_huge, !begins_huge, begins_huge]
}

/// The pairs of a block whose periods came in this order.
pub(crate) fn pairs(order: [bool; 4], spent: [Spent; 4]) -> [Pair; 2] {
    [0, 2].map(|first| match order[first] {
        true => Pair { huge: spent[first], base: spent[first + 1] },
        false => Pair { huge: spent[first + 1], base: spent[first] },
    })
}

/// Blocks measured so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trial {
    /// A logarithm of the change for each pair.
    effects: Vec<f64>,
    void: usize,
    void_reason: Option<Unclear>,
}

impl Trial {
    /// Adds a block, or the reason why it does not count.
    pub(crate) fn add(&mut self, block: Result<[Pair; 2], Unclear>) {
        let effects = block.map(|pairs| pairs.map(|pair| pair.effect()));
        match effects {
            Ok([Some(first), Some(second)]) => self.effects.extend([first, second]),
            Ok(_) => self.void(Unclear::NoWork),
            Err(why) => self.void(why),
        }
    }

    fn void(&mut self, why: Unclear) {
        self.void += 1;
        self.void_reason = Some(why);
    }

    /// Blocks that count, and others.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.effects.len() / 2, self.void)
    }

    /// The verdict, once there is one; at the latest when the time is over.
    pub(crate) fn verdict(&self, min_gain_percent: f64, is_over: bool) -> Option<Verdict> {
        if self.void >= MOST_VOID {
            return self.void_reason.map(Verdict::Unclear);
        }
        let (most, _) = LOOKS[LOOKS.len() - 1];
        let is_last = self.effects.len() >= most || (is_over && self.evaluated().is_some());
        let too_noisy = || is_last.then_some(Verdict::Unclear(Unclear::TooNoisy));
        if !LOOKS.iter().any(|(pairs, _)| *pairs == self.effects.len()) {
            return too_noisy();
        }
        let (low, high) = self.change_percent()?.interval?;
        match -min_gain_percent {
            least if high < least => Some(Verdict::Gain),
            least if low > least => Some(Verdict::NoGain),
            _ => too_noisy(),
        }
    }

    /// The last look: its number of pairs, and its part of the error.
    fn evaluated(&self) -> Option<(usize, f64)> {
        LOOKS.into_iter().rev().find(|(pairs, _)| *pairs <= self.effects.len())
    }

    /// The change of the cost by huge pages, percent, with the interval of the last look.
    pub(crate) fn change_percent(&self) -> Option<Estimate> {
        let percent = |effect: f64| effect.exp_m1() * 100.0;
        let Some((pairs, alpha)) = self.evaluated() else {
            let effect = location(&self.effects, ALPHA).ok()?;
            return Some(Estimate { value: percent(effect.value), interval: None });
        };
        let effect = location(&self.effects[..pairs], alpha).ok()?;
        let interval = effect.interval.map(|(low, high)| (percent(low), percent(high)));
        Some(Estimate { value: percent(effect.value), interval })
    }
}

/// Tells if time can be the unit of work: `loads` are processor time by time, `busiest` that of the busiest thread with
/// its waits for a processor.
pub(crate) fn check_load(loads: &[f64], busiest: f64) -> Result<(), Unclear> {
    let count = loads.len() as f64;
    let mean = loads.iter().sum::<f64>() / count;
    let variance = loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / (count - 1.0);
    match () {
        () if busiest >= SATURATED => Err(Unclear::Saturated),
        () if mean < IDLE => Err(Unclear::Idle),
        () if variance.sqrt() > UNSTEADY * mean => Err(Unclear::Unsteady),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of a service with this change of its cost, with noise of this deviation, one wild period in twenty, and a
    /// load that grows, until there is a verdict; with the number of blocks.
    fn measured(change: f64, deviation: f64, seed: u64) -> (Verdict, usize) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut trial = Trial::default();
        let mut drift = 1.0;
        loop {
            let order = order(random.bool());
            let spent = order.map(|is_huge| {
                drift *= 1.01;
                let noise: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
                let wild = if random.u8(0..20) == 0 { 1.5 } else { 1.0 };
                let factor = if is_huge { 1.0 + change } else { 1.0 };
                let cost = drift * factor * wild * (1.0 + deviation * noise);
                Spent { cpu_ns: (1e9 * cost) as u64, work: 1000.0 }
            });
            trial.add(Ok(pairs(order, spent)));
            if let Some(verdict) = trial.verdict(2.0, false) {
                return (verdict, trial.counts().0);
            }
        }
    }

    #[test]
    fn gains_are_found_and_nothing_else_is() {
        let count = |change, deviation, wanted: Verdict| {
            (0..100).filter(|seed| measured(change, deviation, *seed).0 == wanted).count()
        };
        assert!(count(-0.12, 0.05, Verdict::Gain) >= 98);
        assert!(count(-0.05, 0.02, Verdict::Gain) >= 95);
        assert!(count(0.0, 0.01, Verdict::NoGain) >= 90);
        // Where noise is greater, it says that it cannot tell.
        assert!(count(0.0, 0.05, Verdict::Gain) + count(0.05, 0.05, Verdict::Gain) <= 1);
        // The smallest gain that does not count.
        assert!(count(-0.02, 0.02, Verdict::Gain) <= 5);
    }

    /// The allowed error on one side is 2.5 %. Of 1,000 trials 40 are over that by three standard deviations.
    #[test]
    fn at_the_least_gain_looks_err_no_more_often_than_allowed() {
        for deviation in [0.005, 0.05] {
            let wrong = |seed: &u64| measured(-0.02, deviation, *seed).0 == Verdict::Gain;
            let count = (0..1_000).filter(wrong).count();
            println!("{count} of 1,000 at {deviation}");
            assert!(count <= 40, "{count} at {deviation}");
        }
        let all: f64 = LOOKS.iter().map(|(_, alpha)| alpha).sum();
        assert!((all - ALPHA).abs() < 1e-12, "{all}");
    }

    #[test]
    fn a_gain_of_a_third_needs_few_blocks() {
        let mut blocks: Vec<usize> = (0..100)
            .map(|seed| measured(-1.0 / 3.0, 0.05, seed))
            .inspect(|(verdict, _)| assert_eq!(*verdict, Verdict::Gain))
            .map(|(_, blocks)| blocks)
            .collect();
        blocks.sort_unstable();
        assert_eq!((blocks[50], blocks[90] <= 6), (4, true), "{blocks:?}");
    }

    #[test]
    fn when_the_time_is_over_it_says_so_with_the_interval_of_the_last_look() {
        let mut trial = Trial::default();
        let spent = |cpu_ns| Spent { cpu_ns, work: 1.0 };
        let pair = |huge, base| Pair { huge: spent(huge), base: spent(base) };
        for _ in 0..3 {
            trial.add(Ok([pair(100, 110), pair(120, 110)]));
        }
        assert_eq!(trial.verdict(2.0, true), None, "it was never evaluated");
        assert!(trial.change_percent().unwrap().interval.is_none());
        trial.add(Ok([pair(100, 110), pair(120, 110)]));
        assert_eq!(trial.verdict(2.0, false), None);
        assert_eq!(trial.verdict(2.0, true), Some(Verdict::Unclear(Unclear::TooNoisy)));
        assert!(trial.change_percent().unwrap().interval.is_some());
    }

    #[test]
    fn blocks_without_work_or_state_end_it() {
        let mut trial = Trial::default();
        let idle = Spent { cpu_ns: 1, work: 0.0 };
        for _ in 1..MOST_VOID {
            trial.add(Ok([Pair { huge: idle, base: idle }; 2]));
            assert_eq!(trial.verdict(2.0, false), None);
        }
        trial.add(Err(Unclear::Disturbed));
        assert_eq!(trial.verdict(2.0, false), Some(Verdict::Unclear(Unclear::Disturbed)));
        assert!(trial.change_percent().is_none());
    }

    #[test]
    fn time_is_a_unit_at_a_steady_load_only() {
        let steady = [0.30, 0.31, 0.29, 0.30];
        assert_eq!(check_load(&steady, 0.3), Ok(()));
        assert_eq!(check_load(&steady, 0.95), Err(Unclear::Saturated));
        assert_eq!(check_load(&[0.1, 0.5, 0.2, 0.3], 0.3), Err(Unclear::Unsteady));
        assert_eq!(check_load(&[0.001; 4], 0.0), Err(Unclear::Idle));
    }
}
