//! `cowslip demo`: stores saved under write load.

pub(crate) mod redis;
pub(crate) mod store;
