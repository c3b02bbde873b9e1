//! The ratio of gamma functions that Student's distribution needs.

/// Coefficients of Γ(a + 1/2) / Γ(a) = √w · Σ cₖ w⁻²ᵏ with w = a − 1/4 (Fields 1966; NIST DLMF 5.11.15).
const SERIES: [f64; 8] = [
    1.0,
    1.0 / 64.0,
    -19.0 / 8_192.0,
    631.0 / 524_288.0,
    -174_317.0 / 134_217_728.0,
    20_491_783.0 / 8_589_934_592.0,
    -7_334_801_895.0 / 1_099_511_627_776.0,
    1_858_590_154_455.0 / 70_368_744_177_664.0,
];

/// From here on the series is exact to a double.
const FAR: f64 = 20.0;

/// Γ(a + 1/2) / Γ(a), for a > 0.
///
/// The difference of two log-gammas would lose all digits beyond the ninth at a = 500,000.
pub(super) fn half_step(a: f64) -> f64 {
    let (mut a, mut ratio) = (a, 1.0);
    while a < FAR {
        ratio *= a / (a + 0.5);
        a += 1.0;
    }
    let w = a - 0.25;
    let inverse = 1.0 / (w * w);
    let sum = SERIES.iter().rev().fold(0.0, |sum, coefficient| sum * inverse + coefficient);
    ratio * w.sqrt() * sum
}

#[cfg(test)]
mod tests {
    use super::half_step;

    #[test]
    fn known_values() {
        let pi = std::f64::consts::PI;
        for (a, wanted) in [(0.5, 1.0 / pi.sqrt()), (1.0, pi.sqrt() / 2.0), (1.5, 2.0 / pi.sqrt())]
        {
            assert!((half_step(a) / wanted - 1.0).abs() < 1e-14, "{a}");
        }
    }
}
