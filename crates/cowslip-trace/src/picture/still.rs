//! A trace binned for a still picture: cells of time and address, and steps of time.

use super::bands::Band;
use super::dots::Spot;
use super::scene::Scene;
use crate::attribute::FaultKind;

const KINDS: usize = FaultKind::ALL.len();
/// The share of the height for a break, and the most for all of them.
const BREAK_SHARE: f64 = 0.022;
const MOST_BREAKS: f64 = 0.5;

/// A band of addresses on the axis, which runs from 0 (lowest) to 1.
pub(super) struct Placed<'a> {
    pub(super) space: u32,
    pub(super) band: &'a Band,
    pub(super) name: &'a str,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Its program, at the bottom of each program's bands if there are several.
    pub(super) program: Option<&'a str>,
    /// The bytes left out below; `None` at the bottom of an address space.
    pub(super) gap_bytes: Option<u64>,
}

impl Placed<'_> {
    /// The position of an address; the band's end if it is outside.
    pub(super) fn place(&self, address: u64) -> f64 {
        let Band { start, end, .. } = *self.band;
        let share = (address.clamp(start, end) - start) as f64 / (end - start) as f64;
        self.low + share * (self.high - self.low)
    }
}

/// The bands of the drawn spaces, one above the other.
pub(super) fn place<'a>(scene: &'a Scene) -> Vec<Placed<'a>> {
    let drawn = scene.spaces.iter().enumerate().filter(|(_, space)| space.is_drawn);
    let are_several = drawn.clone().count() > 1;
    let mut placed: Vec<_> = drawn
        .flat_map(|(index, space)| {
            let below = [None].into_iter().chain(space.bands.iter().map(Some));
            let named = space.bands.iter().zip(&space.names).zip(below);
            named.map(move |((band, name), below)| Placed {
                space: index as u32,
                band,
                name,
                low: 0.0,
                high: 0.0,
                program: (are_several && below.is_none()).then_some(&*space.label),
                gap_bytes: below.map(|below| band.start - below.end),
            })
        })
        .collect();
    let breaks = placed.len().saturating_sub(1) as f64;
    let gaps = (breaks * BREAK_SHARE).min(MOST_BREAKS);
    let total: f64 = placed.iter().map(|it| it.band.height).sum();
    let mut at = 0.0;
    for it in &mut placed {
        it.low = at;
        at += it.band.height / total * (1.0 - gaps);
        it.high = at;
        at += gaps / breaks.max(1.0);
    }
    placed
}

/// Faults by cell, row by row from the top.
pub(super) struct Cells {
    pub(super) columns: usize,
    counts: Vec<[u32; KINDS]>,
    most: u32,
}

impl Cells {
    pub(super) fn of(scene: &Scene, placed: &[Placed<'_>], columns: usize, rows: usize) -> Self {
        let mut counts = vec![[0; KINDS]; columns * rows];
        for spot in scene.dots.spots() {
            let Some(place) = place_of(placed, &spot) else { continue };
            let column = column(scene, spot.time_ns, columns);
            let row = ((1.0 - place) * rows as f64) as usize;
            counts[row.min(rows - 1) * columns + column][spot.kind as usize] += 1;
        }
        let most = counts.iter().map(|cell| cell.iter().sum()).max().unwrap_or(0);
        Self { columns, counts, most }
    }

    /// The most frequent kind of a cell, and its fullness from 0 to 1; `None` if the cell is empty.
    pub(super) fn at(&self, row: usize, column: usize) -> Option<(FaultKind, f64)> {
        let cell = &self.counts[row * self.columns + column];
        let count: u32 = cell.iter().sum();
        let kind = (0..KINDS).rev().max_by_key(|kind| cell[*kind])?;
        let level = f64::from(count + 1).log2() / f64::from(self.most.max(1) + 1).log2();
        (count > 0).then_some((FaultKind::ALL[kind], level))
    }
}

fn place_of(placed: &[Placed<'_>], spot: &Spot) -> Option<f64> {
    let Spot { address, space, .. } = *spot;
    let key = |it: &Placed<'_>| (it.space, it.band.end) <= (space, address);
    let found = placed.get(placed.partition_point(key))?;
    let is_inside = found.space == space && found.band.start <= address;
    is_inside.then(|| found.place(address))
}

/// Faults by kind in each of `columns` steps of time.
pub(super) fn rates(scene: &Scene, columns: usize) -> Vec<[u64; KINDS]> {
    let mut rates = vec![[0; KINDS]; columns];
    for spot in scene.dots.spots() {
        rates[column(scene, spot.time_ns, columns)][spot.kind as usize] += 1;
    }
    rates
}

fn column(scene: &Scene, time_ns: u64, columns: usize) -> usize {
    let share = time_ns as f64 / scene.duration_ns as f64;
    ((share * columns as f64) as usize).min(columns - 1)
}
