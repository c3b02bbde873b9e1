//! Metrics that are copies of each other, such as a size in kB and in percent: they are one test, not two.

use fastrand::Rng;

use super::Row;

/// The correlation of copies, within the sides.
const LEAST: f64 = 0.99;
/// Values less sides: fewer agree by chance.
const FEWEST: usize = 6;
/// The most by which the differences between the sides may not agree, in parts of the larger one. A value far from the others of
/// its side, in two metrics, makes them agree there.
const MOST_APART: f64 = 0.2;
/// A smaller difference counts as this one: both are near zero then.
const LEAST_T: f64 = 5.0;

/// The values of a row.
struct Shape {
    row: usize,
    /// The distances from the means of the sides, as a vector of length one.
    unit: Vec<f64>,
    /// The difference between the sides, as Student's t.
    difference: f64,
}

/// Notes at each row that is a copy the first row, by name, that it is one of.
///
/// A difference between the sides makes no copies: each value counts by its distance from the mean of its side. The
/// differences must agree, too.
pub(super) fn find(rows: &mut [Row]) {
    let mut shapes: Vec<Shape> =
        rows.iter().enumerate().filter_map(|(at, row)| Shape::of_row(at, row)).collect();
    shapes.sort_by_key(|shape| (shape.unit.len(), shape.row));
    for equal in shapes.chunk_by(|one, other| one.unit.len() == other.unit.len()) {
        for (copy, original) in pairs(equal) {
            rows[copy].copy_of = Some(rows[original].metric.clone());
        }
    }
}

impl Shape {
    /// `None` for too few values, or for none but zeros.
    fn of_row(at: usize, row: &Row) -> Option<Self> {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let distances = |values: &[f64]| {
            let mean = mean(values);
            values.iter().map(|value| value - mean).collect::<Vec<_>>()
        };
        let all = [distances(&row.good), distances(&row.bad)].concat();
        let length = all.iter().map(|value| value * value).sum::<f64>().sqrt();
        let is_enough = all.len() >= FEWEST + 2 && length > 0.0 && length.is_finite();
        let (a, b) = (row.good.len() as f64, row.bad.len() as f64);
        let of_one_length = (a * b * (a + b - 2.0) / (a + b)).sqrt();
        is_enough.then(|| Self {
            row: at,
            unit: all.iter().map(|value| value / length).collect(),
            difference: (mean(&row.bad) - mean(&row.good)) / length * of_one_length,
        })
    }

    /// True if one is the other times a number, plus a number.
    fn is_copy(&self, other: &Self) -> bool {
        let Some(correlation) = correlation(&self.unit, &other.unit) else { return false };
        let apart = self.difference - correlation.signum() * other.difference;
        let larger = self.difference.abs().max(other.difference.abs());
        apart.abs() <= MOST_APART * larger.max(LEAST_T)
    }
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

/// The product of two vectors of length one, if they are copies. The rests of both bound the rest of it (Cauchy and Schwarz).
fn correlation(one: &[f64], other: &[f64]) -> Option<f64> {
    const PART: usize = 16;
    const ROUNDING: f64 = 1e-9;
    let (mut all, mut left, mut left_of_other) = (0.0_f64, 1.0_f64, 1.0_f64);
    for (a, b) in one.chunks(PART).zip(other.chunks(PART)) {
        all += dot(a, b);
        left -= dot(a, a);
        left_of_other -= dot(b, b);
        let most = all.abs() + (left.max(0.0) * left_of_other.max(0.0)).sqrt();
        if most < LEAST - ROUNDING {
            return None;
        }
    }
    (all.abs() >= LEAST).then_some(all)
}

/// Copies and their originals, of vectors with as many values. Vectors that are near each other, or opposite, are near
/// after a projection: only such pairs are looked at.
fn pairs(shapes: &[Shape]) -> Vec<(usize, usize)> {
    let Some(first) = shapes.first() else { return Vec::new() };
    let mut random = Rng::with_seed(1);
    let mut direction: Vec<f64> = first.unit.iter().map(|_| random.f64() - 0.5).collect();
    let length = direction.iter().map(|value| value * value).sum::<f64>().sqrt();
    direction.iter_mut().for_each(|value| *value /= length);
    let mut places: Vec<(f64, usize)> = shapes
        .iter()
        .enumerate()
        .map(|(index, shape)| (dot(&shape.unit, &direction).abs(), index))
        .collect();
    places.sort_by(|one, other| one.0.total_cmp(&other.0));
    let width = (2.0 * (1.0 - LEAST)).sqrt();
    let mut originals: Vec<usize> = (0..shapes.len()).collect();
    for (at, (place, index)) in places.iter().enumerate() {
        for (_, other) in places[at + 1..].iter().take_while(|(next, _)| next - place <= width) {
            if shapes[*index].is_copy(&shapes[*other]) {
                let (first, copy) = (*index.min(other), *index.max(other));
                originals[copy] = originals[copy].min(first);
            }
        }
    }
    let mut found = Vec::new();
    for copy in 0..shapes.len() {
        // The original of an original, which comes before it.
        originals[copy] = originals[originals[copy]];
        if originals[copy] != copy {
            found.push((shapes[copy].row, shapes[originals[copy]].row));
        }
    }
    found
}
