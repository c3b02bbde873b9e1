//! The order of the commands: pair by pair, so that drift affects both alike.

use super::args::Order;
use super::folders::Side;

pub(super) fn turns(order: Order, pairs: u32, seed: u64) -> Vec<Side> {
    let mut random = fastrand::Rng::with_seed(seed);
    let pair = |index: u32| {
        let is_good_first = match order {
            Order::Random => random.bool(),
            Order::Abba => index.is_multiple_of(2),
        };
        if is_good_first { [Side::Good, Side::Bad] } else { [Side::Bad, Side::Good] }
    };
    (0..pairs).flat_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_both_and_the_seed_decides() {
        use Side::{Bad, Good};
        assert_eq!(turns(Order::Abba, 2, 1), [Good, Bad, Bad, Good]);
        let random = turns(Order::Random, 100, 7);
        assert!(random.chunks(2).all(|pair| pair[0] != pair[1]));
        let good_first = random.chunks(2).filter(|pair| pair[0] == Good).count();
        assert!((25..75).contains(&good_first), "{good_first}");
        assert_eq!(random, turns(Order::Random, 100, 7));
        assert_ne!(random, turns(Order::Random, 100, 8));
    }
}
