//! The result of a probe.

use crate::timing::Stopwatch;
use cowslip_sys::Errno;

use super::capability::{Answer, Capability, Cost, Need};

/// The result of a probe: its proof, or the reason that it has none.
pub(super) type ProbeResult = Result<Proof, Refusal>;

/// A successful probe.
#[derive(Debug, Default)]
pub(super) struct Proof {
    pub(super) cost: Option<Cost>,
    pub(super) detail: String,
}

impl Proof {
    pub(super) fn saw(detail: impl Into<String>) -> Self {
        Self { cost: None, detail: detail.into() }
    }

    pub(super) fn costing(mut self, ns: u64, per: &'static str) -> Self {
        self.cost = Some(Cost { ns, per });
        self
    }
}

/// A failed probe.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) answer: Answer,
    pub(super) detail: String,
    pub(super) fix: Option<String>,
}

impl Refusal {
    pub(super) fn unsupported(detail: impl Into<String>) -> Self {
        Self { answer: Answer::Unsupported, detail: detail.into(), fix: None }
    }

    pub(super) fn denied(detail: impl Into<String>, hint: impl Into<String>) -> Self {
        let answer = Answer::Denied { hint: hint.into() };
        Self { answer, detail: detail.into(), fix: None }
    }

    pub(super) fn unknown(errno: i32, detail: impl Into<String>) -> Self {
        Self { answer: Answer::Unknown { errno }, detail: detail.into(), fix: None }
    }

    /// The obstacle, if there is one.
    pub(super) fn hint(&self) -> Option<&str> {
        match &self.answer {
            Answer::Denied { hint } => Some(hint),
            _ => None,
        }
    }

    pub(super) fn fix(mut self, command: impl Into<String>) -> Self {
        self.fix = Some(command.into());
        self
    }

    pub(super) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// The same reason, for something that needs the refused feature.
    pub(super) fn because(answer: &Answer, detail: impl Into<String>) -> Self {
        Self { answer: answer.clone(), detail: detail.into(), fix: None }
    }

    /// `EINVAL` from a call with correct arguments: the kernel does not know one of them.
    pub(super) fn or_unsupported(errno: Errno) -> Self {
        match errno {
            Errno::INVAL => Self::unsupported(text(errno)),
            _ => errno.into(),
        }
    }
}

impl Capability {
    pub(super) fn new(
        name: &'static str,
        need: Need,
        what_for: &'static str,
        outcome: ProbeResult,
    ) -> Self {
        match outcome {
            Ok(Proof { cost, detail }) => {
                Self { name, what_for, need, answer: Answer::Available, cost, detail, fix: None }
            }
            Err(Refusal { answer, detail, fix }) => {
                Self { name, what_for, need, answer, cost: None, detail, fix }
            }
        }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOSYS | Errno::NOTTY | Errno::OPNOTSUPP | Errno::NODEV => {
                Self::unsupported(text(errno))
            }
            Errno::PERM | Errno::ACCESS => Self::denied(
                text(errno),
                "a missing privilege, a seccomp filter or a security module is in the way",
            ),
            _ => Self::unknown(errno.raw_os_error(), text(errno)),
        }
    }
}

impl From<cowslip_sys::error::Error> for Refusal {
    fn from(error: cowslip_sys::error::Error) -> Self {
        use cowslip_sys::error::ErrorKind::{Denied, Unsupported};
        let detail = error.to_string();
        match error.kind() {
            Unsupported => Self::unsupported(detail),
            Denied => Self::denied(detail, "a missing privilege or a seccomp filter is in the way"),
            _ => Self::unknown(error.errno().unwrap_or(0), detail),
        }
    }
}

fn text(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

/// Measures the time that `work` takes.
pub(super) fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, u64), E> {
    let watch = Stopwatch::start();
    let value = work()?;
    Ok((value, watch.elapsed_ns()))
}

/// The median of the results of several runs of `once`.
pub(super) fn median<E>(mut once: impl FnMut() -> Result<u64, E>) -> Result<u64, E> {
    (0..5).map(|_| once()).collect::<Result<_, E>>().map(middle)
}

/// The middle one of some values, by size.
pub(super) fn middle(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_not_a_lack() {
        let answer = |errno| Refusal::from(errno).answer;
        assert_eq!(answer(Errno::NOSYS), Answer::Unsupported);
        assert!(matches!(answer(Errno::PERM), Answer::Denied { .. }));
        assert_eq!(answer(Errno::NOMEM), Answer::Unknown { errno: 12 });
        assert_eq!(answer(Errno::INVAL), Answer::Unknown { errno: 22 });
        assert_eq!(Refusal::or_unsupported(Errno::INVAL).answer, Answer::Unsupported);
        assert!(matches!(Refusal::or_unsupported(Errno::ACCESS).answer, Answer::Denied { .. }));
    }

    #[test]
    fn the_median_ends_at_the_first_error() {
        let mut values = [5, 1, 4, 2, 3].into_iter();
        assert_eq!(median(|| Ok::<_, Errno>(values.next().unwrap())), Ok(3));
        assert_eq!(median(|| Err(Errno::NOMEM)), Err(Errno::NOMEM));
    }
}
