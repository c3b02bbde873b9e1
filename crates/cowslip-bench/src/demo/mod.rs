//! `cowslip demo`: stores saved under write load, and the results for a reader in a hurry.

mod page;
mod picture;
mod quantities;
pub mod redis;
mod sentences;
pub mod store;

pub use page::page;
pub use picture::picture;
pub use sentences::sentences;
