//! The plan of a measurement of the gain, and its evaluation.
//!
//! A block is four periods, two with huge pages and two without, as ABBA or BAAB by chance: a load that grows evenly
//! changes both states alike. Blocks are compared by the interval of [`location`], which bears some wild ones. It is
//! looked at after some numbers of blocks, each time with its part of the allowed error.

use cowslip_compare::stats::{Estimate, location};

use crate::model::{Block, Unclear, Verdict};

/// The numbers of blocks after which it is evaluated.
const LOOKS: [usize; 4] = [8, 16, 32, 64];
/// The most blocks.
pub(crate) const MOST_BLOCKS: usize = LOOKS[LOOKS.len() - 1];
/// The allowed probability of an interval that misses the truth, at all looks together.
const ALPHA: f64 = 0.05;
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

/// Blocks measured so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trial {
    effects: Vec<f64>,
    void: usize,
    void_reason: Option<Unclear>,
}

impl Trial {
    /// Adds a block, or the reason why it does not count.
    pub(crate) fn add(&mut self, block: Result<Block, Unclear>) {
        match block.and_then(|block| block.effect().ok_or(Unclear::NoWork)) {
            Ok(effect) => self.effects.push(effect),
            Err(why) => {
                self.void += 1;
                self.void_reason = Some(why);
            }
        }
    }

    /// Blocks that count, and others.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.effects.len(), self.void)
    }

    /// The verdict, once there is one.
    pub(crate) fn verdict(&self, min_gain_percent: f64) -> Option<Verdict> {
        if self.void >= MOST_VOID {
            return self.void_reason.map(Verdict::Unclear);
        }
        if !LOOKS.contains(&self.effects.len()) {
            return None;
        }
        let (low, high) = self.change_percent()?.interval?;
        let is_last = self.effects.len() == MOST_BLOCKS;
        match -min_gain_percent {
            least if high < least => Some(Verdict::Gain),
            least if low > least => Some(Verdict::NoGain),
            _ => is_last.then_some(Verdict::Unclear(Unclear::TooNoisy)),
        }
    }

    /// The change of the cost by huge pages, percent.
    pub(crate) fn change_percent(&self) -> Option<Estimate> {
        let effect = location(&self.effects, ALPHA / LOOKS.len() as f64).ok()?;
        let percent = |effect: f64| effect.exp_m1() * 100.0;
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
    use crate::model::Spent;

    /// Blocks of a service with this change of its cost, with noise of this deviation and one wild period in
    /// twenty, until there is a verdict.
    fn measured(change: f64, deviation: f64, seed: u64) -> Verdict {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut trial = Trial::default();
        let mut drift = 1.0;
        loop {
            let mut block = Block::default();
            for is_huge in order(random.bool()) {
                drift *= 1.01;
                let noise: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
                let wild = if random.u8(0..20) == 0 { 1.5 } else { 1.0 };
                let factor = if is_huge { 1.0 + change } else { 1.0 };
                let cpu_ns = (1e9 * drift * factor * wild * (1.0 + deviation * noise)) as u64;
                let spent = Spent { cpu_ns, work: 1000.0 };
                let side = if is_huge { &mut block.huge } else { &mut block.base };
                *side = side.plus(spent);
            }
            trial.add(Ok(block));
            if let Some(verdict) = trial.verdict(2.0) {
                return verdict;
            }
        }
    }

    #[test]
    fn gains_are_found_and_nothing_else_is() {
        let count = |change, deviation, wanted: Verdict| {
            (0..100).filter(|seed| measured(change, deviation, *seed) == wanted).count()
        };
        assert!(count(-0.12, 0.05, Verdict::Gain) >= 98);
        assert!(count(-0.05, 0.02, Verdict::Gain) >= 95);
        assert!(count(0.0, 0.01, Verdict::NoGain) >= 90);
        // Where noise is greater, it says that it cannot tell.
        assert!(count(0.0, 0.05, Verdict::Gain) + count(0.05, 0.05, Verdict::Gain) <= 1);
        // The smallest gain that does not count.
        assert!(count(-0.02, 0.02, Verdict::Gain) <= 5);
    }

    #[test]
    fn blocks_without_work_or_state_end_it() {
        let mut trial = Trial::default();
        for _ in 1..MOST_VOID {
            trial.add(Ok(Block::default()));
            assert_eq!(trial.verdict(2.0), None);
        }
        trial.add(Err(Unclear::Disturbed));
        assert_eq!(trial.verdict(2.0), Some(Verdict::Unclear(Unclear::Disturbed)));
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
