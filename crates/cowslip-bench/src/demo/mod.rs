//! `cowslip demo`: stores saved under write load.

pub mod redis;
pub mod store;
