//! How long what failed, or found nothing, is left alone.

use std::time::Duration;

/// Twice as long as the last time, between two bounds.
pub(crate) fn backoff(delay_ns: &mut u64, first_ns: u64, last_ns: u64) -> Duration {
    *delay_ns = (*delay_ns * 2).clamp(first_ns, last_ns);
    Duration::from_nanos(*delay_ns)
}
