//! Metrics for Prometheus: written, served, and read back.

mod server;
mod snapshot;
mod source;
mod text;

pub(crate) use server::Published;
pub(crate) use server::get;
pub use server::scrape;
pub(crate) use snapshot::{Labels, labels, sample};
pub use snapshot::{Process, Snapshot};
pub use source::Source;
pub use text::text;
