//! Numbers that follow Zipf's law, drawn in constant time as YCSB draws them (Gray et al., "Quickly generating
//! billion-record synthetic databases", SIGMOD 1994).

use super::value::Random;

/// YCSB's exponent.
const THETA: f64 = 0.99;

/// Popularity of `n` items, the most popular first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Zipf {
    n: usize,
    zeta_n: f64,
    eta: f64,
}

impl Zipf {
    /// Sums up the popularity of all items once.
    pub(crate) fn new(n: usize) -> Self {
        let zeta = |n: usize| (1..=n).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let (zeta_n, zeta_2) = (zeta(n), zeta(2));
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - THETA)) / (1.0 - zeta_2 / zeta_n);
        Self { n, zeta_n, eta }
    }

    /// A rank, from 0 on.
    pub(crate) fn rank(&self, random: &mut Random) -> usize {
        let uniform = random.unit();
        let share = uniform * self.zeta_n;
        if share < 1.0 {
            return 0;
        }
        if share < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        let base = self.eta * uniform - self.eta + 1.0;
        ((self.n as f64 * base.powf(1.0 / (1.0 - THETA))) as usize).min(self.n - 1)
    }

    /// An item whose place among the others is unrelated to its rank.
    pub(crate) fn item(&self, random: &mut Random) -> usize {
        let rank = self.rank(random);
        (Random(rank as u64).next() % self.n as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_popular_as_the_law_says() {
        const ITEMS: usize = 1000;
        const DRAWS: usize = 1 << 20;
        let (zipf, mut random) = (Zipf::new(ITEMS), Random(7));
        let mut counts = vec![0_usize; ITEMS];
        (0..DRAWS).for_each(|_| counts[zipf.rank(&mut random)] += 1);
        let zeta: f64 = (1..=ITEMS).map(|rank| (rank as f64).powf(-THETA)).sum();
        let expected = |from: usize, to: usize| {
            (from + 1..=to).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>() / zeta
        };
        // Exact for the first two; the curve through the others is within a few percent.
        for (from, to, tolerance) in
            [(0, 1, 0.02), (1, 2, 0.02), (2, 10, 0.1), (10, 100, 0.05), (100, 1000, 0.05)]
        {
            let found = counts[from..to].iter().sum::<usize>() as f64 / DRAWS as f64;
            let off = found / expected(from, to) - 1.0;
            assert!(off.abs() < tolerance, "{from}..{to}: {off}");
        }
    }

    #[test]
    fn popular_items_lie_anywhere() {
        let (zipf, mut random) = (Zipf::new(1000), Random(7));
        let low = (0..1000).filter(|_| zipf.item(&mut random) < 500).count();
        assert!((200..800).contains(&low), "{low}");
    }
}
