//! Sums with more precision than a double.

/// A sum as the unevaluated sum of two doubles.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Sum {
    pub(super) high: f64,
    pub(super) low: f64,
}

impl Sum {
    pub(super) fn from_values(values: impl IntoIterator<Item = f64>) -> Self {
        let sum = values.into_iter().fold(Self::default(), Self::plus);
        let high = sum.high + sum.low;
        Self { high, low: sum.low - (high - sum.high) }
    }

    /// Neumaier's sum: the rounding error of every addition is exact, whichever term is greater.
    fn plus(self, value: f64) -> Self {
        let high = self.high + value;
        let lost = if self.high.abs() >= value.abs() {
            (self.high - high) + value
        } else {
            (value - high) + self.high
        };
        Self { high, low: self.low + lost }
    }

    pub(super) fn over(self, divisor: f64) -> Self {
        let high = self.high / divisor;
        let rest = (-high).mul_add(divisor, self.high);
        Self { high, low: (rest + self.low) / divisor }
    }
}
