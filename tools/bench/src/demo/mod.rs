//! `cowslip-bench demo`: a Redis saved under write load, and the results for a reader in a hurry.

mod page;
mod picture;
mod quantities;
pub mod redis;
mod sentences;

pub use page::page;
pub use picture::picture;
pub use sentences::sentences;
