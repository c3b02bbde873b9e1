//! Change points by E-divisive means: the best place divides a sequence if its energy is hardly ever reached by the same
//! values in another order, and both parts are divided in turn.

use fastrand::Rng;

use super::energy::Scanner;

/// Orders for each order that may reach the energy of a change point.
const ORDERS: f64 = 5.0;
/// Makes the orders, and therefore the results, the same each time.
const SEED: u64 = 1;

/// A place at which values changed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ChangePoint {
    /// The first value of the new level, from 0.
    pub at: usize,
    /// The probability that values in random order look as changed as these.
    pub p: f64,
}

/// The change points of values in the order of time, each with a p of `alpha` at most (Matteson and James 2014). Of
/// sequences that never change, a share of `alpha` at most has any.
///
/// Two scans share `alpha`: one divides the whole sequence, and finds the newest change soonest; the other divides each
/// beginning of it, and finds levels that came and went.
///
/// ```
/// use cowslip_compare::history::change_points;
///
/// let values: Vec<f64> = (0..40).map(|at| f64::from(at * 7 % 5) + if at < 25 { 0.0 } else { 9.0 }).collect();
/// let found: Vec<usize> = change_points(&values, 0.01).iter().map(|it| it.at).collect();
/// assert_eq!(found, [25]);
/// ```
pub fn change_points(values: &[f64], alpha: f64) -> Vec<ChangePoint> {
    let mut all = Vec::new();
    let mut random = Rng::with_seed(SEED);
    let mut parts = vec![(0, values.len())];
    while let Some((from, to)) = parts.pop() {
        if let Some(point) = divide(&values[from..to], alpha, &mut random) {
            let at = from + point.at;
            all.push(ChangePoint { at, ..point });
            parts.extend([(from, at), (at, to)]);
        }
    }
    all.sort_by_key(|point| point.at);
    all
}

/// The change point of a sequence, if it has one.
fn divide(values: &[f64], alpha: f64, random: &mut Rng) -> Option<ChangePoint> {
    let mut scanner = Scanner::new(values.len());
    let found = scanner.splits(values)?;
    let is_constant = values.iter().all(|value| *value == values[0]);
    let places = [found.whole, found.part];
    let orders = (2.0 * ORDERS / alpha).ceil() as u32 - 1;
    let p = |reached: u32| 2.0 * f64::from(reached + 1) / f64::from(orders + 1);
    let mut reached = [0; 2];
    let mut shuffled = values.to_vec();
    for _ in 0..orders {
        // More orders cannot make it significant (Besag and Clifford 1991).
        if is_constant || reached.iter().all(|reached| p(*reached) > alpha) {
            return None;
        }
        random.shuffle(&mut shuffled);
        let other = scanner.splits(&shuffled)?;
        reached[0] += u32::from(other.whole.energy >= found.whole.energy);
        reached[1] += u32::from(other.part.energy >= found.part.energy);
    }
    let which = usize::from(reached[1] < reached[0]);
    let p = p(reached[which]);
    (p <= alpha).then_some(ChangePoint { at: places[which].at, p: p.min(1.0) })
}
