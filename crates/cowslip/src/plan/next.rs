//! The order of importance.

use std::time::Duration;

use super::Plan;
use super::facts::Facts;
use super::limits::count_copies;
use super::settings::thaw::MANY_VIEWS;
use super::task::{Decision, Task};

/// The next piece of background work.
pub(crate) fn next(facts: &mut impl Facts, plan: &mut Plan) -> Task {
    // Nothing comes between a thaw and its end: threads wait for that.
    if let Some(finish) = plan.thaw.finish_now(facts) {
        return finish;
    }
    let quiet_ns = plan.quiet.until_ns.saturating_sub(facts.now_ns());
    let decided = if quiet_ns > 0 && !facts.is_short() && facts.old_views() < MANY_VIEWS {
        // A program that forks often is never out of it, and its copies grow.
        Decision::After(quiet_ns).or_sooner(count_copies(facts))
    } else if facts.old_views() > 0 {
        Decision::Do(Task::UnmapView)
    } else {
        decide(facts, plan)
    };
    match decided {
        Decision::Do(task) => task,
        Decision::After(ns) => Task::Wait(Duration::from_nanos(ns)),
        Decision::Nothing => Task::Idle,
    }
}

/// The first that has something to do, or the shortest time until one has.
fn decide<F: Facts>(facts: &mut F, plan: &mut Plan) -> Decision {
    let in_order: [fn(&mut F, &mut Plan) -> Decision; 7] = [
        |facts, plan| plan.density.pressing(facts),
        |facts, plan| plan.residency.next(facts),
        |facts, plan| plan.thaw.next(facts, &mut plan.moving),
        |facts, plan| if is_settled(facts) { plan.clean.next(facts) } else { Decision::Nothing },
        |facts, plan| {
            if is_settled(facts) { plan.consolidate.next(facts) } else { Decision::Nothing }
        },
        // Memory that a thaw or a huge page is about to replace need not be mapped before that.
        |facts, plan| plan.density.next(facts),
        |facts, _| map(facts),
    ];
    let mut decided = Decision::Nothing;
    for next in in_order {
        decided = decided.or_sooner(next(facts, plan));
        if matches!(decided, Decision::Do(_)) {
            break;
        }
    }
    decided
}

/// True if nothing is read and all is live, or clean.
fn is_settled(facts: &impl Facts) -> bool {
    !facts.is_held() && facts.map().private() == 0 && !facts.has_vacated()
}

fn map(facts: &impl Facts) -> Decision {
    let is_wanted = !facts.is_short() && facts.has_unmapped();
    if is_wanted { Decision::Do(Task::Map) } else { Decision::Nothing }
}
