//! The verdict on all the answers.

use super::capability::{Answer, Capability, Need};

/// Everything that was tried, in reporting order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// One entry for each probe.
    pub capabilities: Vec<Capability>,
}

/// How well Cowslip works here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Everything works.
    Full,
    /// It works, but lacks something that no permission would provide.
    Partly,
    /// Something is not permitted, and without it Cowslip works in part or not at all.
    Denied,
    /// The kernel lacks something essential.
    Unsupported,
    /// Something essential failed, but not for lack of a feature or a permission.
    Failed,
}

impl Report {
    /// The capability of that name.
    pub fn get(&self, name: &str) -> Option<&Capability> {
        self.capabilities.iter().find(|capability| capability.name == name)
    }

    /// How well Cowslip works here.
    pub fn standing(&self) -> Standing {
        if let Some(lacking) = self.lacking(Need::Essential).next() {
            return match lacking.answer {
                Answer::Unsupported => Standing::Unsupported,
                Answer::Denied { .. } => Standing::Denied,
                _ => Standing::Failed,
            };
        }
        let mut missing = self.missing().peekable();
        if missing.peek().is_none() {
            Standing::Full
        } else if missing.any(|capability| matches!(capability.answer, Answer::Denied { .. })) {
            Standing::Denied
        } else {
            Standing::Partly
        }
    }

    /// Returns true if arenas get huge pages.
    pub fn has_huge_pages(&self) -> bool {
        let mut candidates =
            self.capabilities.iter().filter(|capability| capability.need == Need::HugePages);
        candidates.any(|capability| capability.answer.is_available())
    }

    /// The commands that would provide the missing capabilities, each once.
    pub fn fixes(&self) -> Vec<&str> {
        let mut fixes: Vec<&str> = Vec::new();
        for fix in self.missing().filter_map(|capability| capability.fix.as_deref()) {
            if !fixes.contains(&fix) {
                fixes.push(fix);
            }
        }
        fixes
    }

    /// All of it in one plain sentence.
    pub fn sentence(&self) -> String {
        if let Some(lacking) = self.lacking(Need::Essential).next() {
            return format!("Cowslip does not work here: {}: {}.", lacking.name, lacking.detail);
        }
        if self.standing() == Standing::Full {
            let cost = |name| {
                let cost = self.get(name).and_then(|capability| capability.cost);
                cost.map_or(String::new(), |cost| format!(" ({cost})"))
            };
            return format!(
                "Cowslip works here in full: freeze{}, thaw while the program runs{}, huge pages.",
                cost("freeze"),
                cost("thaw")
            );
        }
        let yes_or_no = |yes| if yes { "yes" } else { "no" };
        let thaws = self.get("thaw").is_some_and(|capability| capability.answer.is_available());
        let mut sentence = format!(
            "Cowslip works here {}: huge pages {}, thaw while the program runs {}",
            if thaws { "in part" } else { "without userfaultfd" },
            yes_or_no(self.has_huge_pages()),
            yes_or_no(thaws),
        );
        if thaws {
            for lacking in self.lacking(Need::Full) {
                sentence += &format!(", {} no", lacking.name);
            }
        }
        if !(thaws && self.has_huge_pages()) {
            sentence += "; `cowslip run` leaves programs alone";
        }
        match self.fixes().as_slice() {
            [] => sentence += ".",
            fixes => {
                let who =
                    if fixes.iter().all(|fix| fix.starts_with("sudo ")) { "" } else { "as root " };
                sentence += &format!("; {who}run `{}`.", fixes.join("` and `"));
            }
        }
        sentence
    }

    fn lacking(&self, need: Need) -> impl Iterator<Item = &Capability> {
        self.capabilities
            .iter()
            .filter(move |capability| capability.need == need && !capability.answer.is_available())
    }

    /// The capabilities that keep Cowslip from working in full.
    fn missing(&self) -> impl Iterator<Item = &Capability> {
        let huge = self.lacking(Need::HugePages).filter(|_| !self.has_huge_pages());
        self.lacking(Need::Essential).chain(self.lacking(Need::Full)).chain(huge)
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{Proof, Refusal};
    use super::*;

    fn report(refused: &[(&'static str, Refusal)]) -> Report {
        use Need::{Essential, Extra, Full, HugePages};
        let all = [
            ("freeze", Essential),
            ("thaw", Full),
            ("userfaultfd", Full),
            ("private-copies", Full),
            ("huge-tmpfs", HugePages),
            ("huge-memfd", HugePages),
            ("swap", Extra),
        ];
        let capabilities = all.map(|(name, need)| {
            let no = refused.iter().find(|(refused, _)| *refused == name);
            let yes = Proof::default().costing(20_000, "a chunk");
            Capability::new(name, need, "", no.map_or(Ok(yes), |(_, no)| Err(no.clone())))
        });
        Report { capabilities: capabilities.into() }
    }

    fn denied(fix: &str) -> Refusal {
        Refusal::denied("EPERM", "hint").fix(fix)
    }

    #[test]
    fn one_way_to_huge_pages_is_enough() {
        let report = report(&[("huge-memfd", denied("B")), ("swap", denied("C"))]);
        assert_eq!(report.standing(), Standing::Full);
        assert_eq!(
            report.sentence(),
            "Cowslip works here in full: freeze (20.0 µs a chunk), thaw while the program runs \
             (20.0 µs a chunk), huge pages."
        );
        assert!(report.fixes().is_empty());
    }

    #[test]
    fn without_userfaultfd_it_names_what_fixes_that() {
        let report = report(&[
            ("thaw", Refusal::denied("", "hint")),
            ("userfaultfd", denied("A")),
            ("huge-tmpfs", denied("B")),
            ("huge-memfd", denied("B")),
        ]);
        assert_eq!(report.standing(), Standing::Denied);
        assert_eq!(
            report.sentence(),
            "Cowslip works here without userfaultfd: huge pages no, thaw while the program runs no; \
             `cowslip run` leaves programs alone; as \
             root run `A` and `B`."
        );
    }

    #[test]
    fn what_no_permission_brings_is_partly() {
        let report = report(&[("private-copies", Refusal::unknown(12, "no memory"))]);
        assert_eq!(report.standing(), Standing::Partly);
        assert_eq!(
            report.sentence(),
            "Cowslip works here in part: huge pages yes, thaw while the program runs yes, \
             private-copies no."
        );
    }

    #[test]
    fn without_the_essential_nothing_works() {
        let standing = |no| report(&[("freeze", no)]).standing();
        assert_eq!(standing(Refusal::unsupported("")), Standing::Unsupported);
        assert_eq!(standing(denied("A")), Standing::Denied);
        assert_eq!(standing(Refusal::unknown(5, "")), Standing::Failed);
        let sentence = report(&[("freeze", Refusal::unsupported("no memfd"))]).sentence();
        assert_eq!(sentence, "Cowslip does not work here: freeze: no memfd.");
    }
}
