//! Delays after attempts that failed or found nothing.

use std::time::Duration;

/// Doubles the last delay, between two bounds.
pub(crate) fn backoff(delay_ns: &mut u64, first_ns: u64, last_ns: u64) -> Duration {
    *delay_ns = (*delay_ns * 2).clamp(first_ns, last_ns);
    Duration::from_nanos(*delay_ns)
}
