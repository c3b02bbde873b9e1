//! The results of the steps: lines for people, JSON for programs (schema `cowslip.setup/1`).

use cowslip_report::{BAD, DIM, GOOD, Paint};
use serde_json::{Value, json};

/// The result of a step.
pub(crate) enum Change {
    /// The change was needed, and was made, or would be in a dry run.
    Made(String),
    /// Everything was right already.
    Needless(String),
    /// It was tried, and works.
    Proved(String),
}

/// The reason why a step failed, and a remedy.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) why: String,
    pub(crate) fix: String,
}

pub(crate) type Outcome = Result<Change, Trouble>;

impl Trouble {
    pub(crate) fn new(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { why: why.into(), fix: fix.into() }
    }
}

/// All steps, in the order in which they were done.
pub struct Steps {
    steps: Vec<(String, Outcome)>,
    dry_run: bool,
}

impl Steps {
    pub(crate) fn new(dry_run: bool) -> Self {
        Self { steps: Vec::new(), dry_run }
    }

    /// Records a step, and returns true if it succeeded.
    pub(crate) fn add(&mut self, name: impl Into<String>, outcome: Outcome) -> bool {
        let is_well = outcome.is_ok();
        self.steps.push((name.into(), outcome));
        is_well
    }

    /// Returns true if no step failed.
    pub fn all_well(&self) -> bool {
        self.steps.iter().all(|(_, outcome)| outcome.is_ok())
    }

    /// Returns true if something was changed, or would be.
    pub(crate) fn changes(&self) -> bool {
        self.steps.iter().any(|(_, outcome)| matches!(outcome, Ok(Change::Made(_))))
    }

    fn word(&self, outcome: &Outcome) -> &'static str {
        match outcome {
            Ok(Change::Made(_)) if self.dry_run => "would",
            Ok(Change::Made(_)) => "done",
            Ok(Change::Needless(_)) => "needless",
            Ok(Change::Proved(_)) => "works",
            Err(_) => "failed",
        }
    }

    /// Formats the steps for people.
    pub fn lines(&self, paint: Paint) -> String {
        let mut text = String::new();
        for (name, outcome) in &self.steps {
            let (style, what) = match outcome {
                Ok(Change::Made(what) | Change::Proved(what)) => (GOOD, what.clone()),
                Ok(Change::Needless(what)) => (DIM, what.clone()),
                Err(trouble) => (BAD, format!("{}\n{:10}{}", trouble.why, "", trouble.fix)),
            };
            let word = paint.paint(style, &format!("{:10}", self.word(outcome)));
            text += &format!("{word}{name}: {what}\n");
        }
        text
    }

    /// Formats the steps for programs.
    pub fn document(&self, undo: bool) -> Value {
        let step = |(name, outcome): &(String, Outcome)| {
            let (detail, fix) = match outcome {
                Ok(Change::Made(what) | Change::Needless(what) | Change::Proved(what)) => {
                    (what, None)
                }
                Err(trouble) => (&trouble.why, Some(&trouble.fix)),
            };
            json!({"step": name, "outcome": self.word(outcome), "detail": detail, "fix": fix})
        };
        json!({
            "schema": "cowslip.setup/1",
            "undo": undo,
            "dry_run": self.dry_run,
            "ok": self.all_well(),
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
        })
    }
}
