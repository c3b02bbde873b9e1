//! A metric and its value at one look.

use crate::recording::{Definition, MetricKind};

/// Clock ticks a second in `/proc`, at any rate of the kernel itself (USER_HZ).
pub(super) const TICKS: f64 = 100.0;

/// A metric and its value at one look.
pub(super) type Reading = (Definition, Option<f64>);

pub(super) fn reading(name: impl Into<String>, kind: MetricKind, value: Option<f64>) -> Reading {
    (Definition { name: name.into(), kind }, value)
}

pub(super) fn add<const N: usize>(sums: &mut [f64; N], values: &[f64; N]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}
