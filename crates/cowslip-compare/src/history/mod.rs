//! The history of a benchmark: a file of entries, and the entries at which its values changed.
//!
//! * [`Entry`] is the result of one recording: a commit, a machine, and the values of all runs.
//! * [`Store`] keeps entries in files of JSON Lines, one file a series.
//! * [`analyse`] finds change points in them, separately for each machine.

mod analysis;
mod change_points;
mod detectable;
mod drift;
mod energy;
mod entry;
mod group;
mod settings;
mod store;

pub use analysis::{History, analyse};
pub use change_points::{ChangePoint, change_points};
pub use detectable::smallest_step;
pub use drift::Drift;
pub use entry::{Entry, MACHINE, Metrics, SCHEMA};
pub use group::{Change, Group, Level, Point};
pub use settings::Settings;
pub use store::{Series, Store};
