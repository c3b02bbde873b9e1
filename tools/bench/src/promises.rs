//! The promises of all benches.

use crate::promise::Promise;

/// The promises of each bench, in the order of the pages.
pub(crate) const BENCHES: [(&str, &[Promise]); 9] = [
    ("cow", &crate::cow::PROMISES),
    ("fork", &crate::fork::PROMISES),
    ("save", &crate::save::PROMISES),
    ("restore", &crate::restore::PROMISES),
    ("bloat", &crate::bloat::PROMISES),
    ("trace", &crate::trace::PROMISES),
    ("process", &crate::process::PROMISES),
    ("vm", &crate::vm::PROMISES),
    ("demo", &crate::demo::redis::PROMISES),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Enough for all that a user chooses by.
    const MOST_PROMISES: usize = 58;

    #[test]
    fn the_specification_has_every_promise_and_its_bound() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let specification = std::fs::read_to_string(root.join("SPECIFICATION.md")).unwrap();
        let promised: Vec<_> =
            specification.lines().filter(|line| line.starts_with("| `")).collect();
        let lines = BENCHES.iter().flat_map(|(bench, promises)| {
            promises.iter().map(move |promise| {
                format!("| `{}` | {} | `bench {bench}` |", promise.name, promise.bound)
            })
        });
        assert_eq!(promised, lines.collect::<Vec<_>>());
        assert!(promised.len() <= MOST_PROMISES, "{}", promised.len());
    }
}
