//! Metrics that are copies of each other, such as a size in kB and in percent: they are one test, not two.

use fastrand::Rng;

use super::Row;

/// The correlation of copies, within the sides.
const LEAST: f64 = 0.99;
/// Values less sides: fewer agree by chance.
const FEWEST: usize = 6;

/// Notes at each row that is a copy the first row, by name, that it is one of.
///
/// A difference between the sides makes no copies: each value counts by its distance from the mean of its side.
pub(super) fn find(rows: &mut [Row]) {
    let mut units: Vec<(usize, Vec<f64>)> =
        rows.iter().enumerate().filter_map(|(at, row)| Some((at, unit(row)?))).collect();
    units.sort_by(|one, other| one.1.len().cmp(&other.1.len()).then(one.0.cmp(&other.0)));
    for equal in units.chunk_by_mut(|one, other| one.1.len() == other.1.len()) {
        for (copy, original) in pairs(equal) {
            rows[copy].copy_of = Some(rows[original].metric.clone());
        }
    }
}

/// The distances from the means of the sides, as a vector of length one; `None` for too few, or for none but zeros.
fn unit(row: &Row) -> Option<Vec<f64>> {
    let distances = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| value - mean).collect::<Vec<_>>()
    };
    let all = [distances(&row.good), distances(&row.bad)].concat();
    let length = all.iter().map(|value| value * value).sum::<f64>().sqrt();
    let is_enough = all.len() >= FEWEST + 2 && length > 0.0 && length.is_finite();
    is_enough.then(|| all.iter().map(|value| value / length).collect())
}

/// Copies and their originals, of vectors with as many values. Vectors that are near each other, or opposite, are near
/// after a projection: only such pairs are looked at.
fn pairs(units: &[(usize, Vec<f64>)]) -> Vec<(usize, usize)> {
    let Some((_, first)) = units.first() else { return Vec::new() };
    let mut random = Rng::with_seed(1);
    let mut direction: Vec<f64> = first.iter().map(|_| random.f64() - 0.5).collect();
    let length = direction.iter().map(|value| value * value).sum::<f64>().sqrt();
    direction.iter_mut().for_each(|value| *value /= length);
    let dot = |one: &[f64], other: &[f64]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f64>();
    let mut places: Vec<(f64, usize)> = units
        .iter()
        .enumerate()
        .map(|(index, (_, unit))| (dot(unit, &direction).abs(), index))
        .collect();
    places.sort_by(|one, other| one.0.total_cmp(&other.0));
    let width = (2.0 * (1.0 - LEAST)).sqrt();
    let mut originals: Vec<usize> = (0..units.len()).collect();
    for (at, (place, index)) in places.iter().enumerate() {
        for (_, other) in places[at + 1..].iter().take_while(|(next, _)| next - place <= width) {
            if dot(&units[*index].1, &units[*other].1).abs() >= LEAST {
                let (first, copy) = (*index.min(other), *index.max(other));
                originals[copy] = originals[copy].min(first);
            }
        }
    }
    let mut found = Vec::new();
    for copy in 0..units.len() {
        // The original of an original, which comes before it.
        originals[copy] = originals[originals[copy]];
        if originals[copy] != copy {
            found.push((units[copy].0, units[originals[copy]].0));
        }
    }
    found
}
