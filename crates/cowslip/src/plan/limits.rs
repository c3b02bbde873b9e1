//! When the copies that children cost are counted, while no child may be ended for them.
//!
//! ```text
//!   after a fork, or lingering ──▶ counts ──▶ half of the limit: memory is short, and goes back at once
//!   all that is frozen is read ──▶ counts ──▶ over the limit: a child ends ([`super::thaw`])
//! ```

use super::facts::Facts;
use super::task::Decision;

/// Counts the copies of memory, of which some may go back before a child has to end. Returns the time to the next count.
pub(super) fn count_copies(facts: &mut impl Facts) -> Decision {
    if facts.map().private() == 0 {
        return Decision::Nothing;
    }
    facts.keep_limit(false).map_or(Decision::Nothing, Decision::After)
}
