//! The uses of Cowslip, and which of them work here.

use std::time::Duration;

use cowslip::Error;
use cowslip::host::{Answer, Need, Report};
use cowslip_sys::capabilities::SETCAP;
use cowslip_sys::process;
use cowslip_trace::record::{Permission, PermissionStatus};

/// Root lacks a capability in a container only, where no file gives it.
const DOCKER_NICE: &str = "docker run --cap-add SYS_NICE IMAGE";

/// The results of the probes.
pub(super) struct Findings {
    pub(super) report: Report,
    pub(super) permissions: Vec<Permission>,
    /// `CAP_SYS_NICE` is in force.
    pub(super) may_promote: bool,
    /// The pause of a program that was copied while it ran.
    pub(super) copied: Result<Duration, Error>,
}

/// A use of Cowslip.
pub(super) struct Use {
    pub(super) name: &'static str,
    /// The command, or the page that describes it.
    pub(super) by: &'static str,
    pub(super) works: Works,
    /// The missing capabilities; for a use that works, its cost.
    pub(super) why: String,
    /// Commands that enable the use, for root.
    pub(super) fixes: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Works {
    Yes,
    InPart,
    No,
}

impl Works {
    /// For people.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Yes => "works",
            Self::InPart => "in part",
            Self::No => "does not",
        }
    }

    /// For programs.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::InPart => "partly",
            Self::No => "no",
        }
    }
}

pub(super) fn uses(findings: &Findings) -> Vec<Use> {
    let report = &findings.report;
    vec![
        run(report),
        Use { name: "fork server, fuzzing", by: "docs/guides/fuzzing.md", ..run(report) },
        templates(report),
        images(report),
        running(&findings.copied),
        promote(findings),
        trace(&findings.permissions),
        Use {
            name: "compare good and bad runs",
            by: "cowslip compare run",
            works: Works::Yes,
            why: String::new(),
            fixes: Vec::new(),
        },
    ]
}

/// A program is helped only if its memory is thawed again, and on huge pages.
fn run(report: &Report) -> Use {
    let (mut why, fixes) = missing(report, &[Need::Essential, Need::Full, Need::HugePages]);
    let is_helped = is_available(report, "thaw") && report.has_huge_pages();
    let works = match (why.is_empty(), is_helped && !lacks_essential(report)) {
        (true, _) => Works::Yes,
        (false, true) => Works::InPart,
        (false, false) => {
            why += "; a program runs as without Cowslip";
            Works::No
        }
    };
    if works == Works::Yes {
        let costs = ["freeze", "fork"].into_iter().filter_map(|name| report.get(name)?.cost);
        why = costs.map(|cost| cost.to_string()).collect::<Vec<_>>().join(", ");
    }
    Use { name: "run a program that forks", by: "cowslip run -- PROGRAM", works, why, fixes }
}

fn templates(report: &Report) -> Use {
    let (mut why, fixes) = missing(report, &[Need::Essential, Need::HugePages]);
    let works = match (lacks_essential(report), report.has_huge_pages()) {
        (true, _) => Works::No,
        (false, false) => {
            why += "; clones are on base pages, and resets take longer";
            Works::InPart
        }
        (false, true) => Works::Yes,
    };
    Use { name: "templates and clones (Rust)", by: "docs/templates.md", works, why, fixes }
}

fn images(report: &Report) -> Use {
    let (mut why, fixes) = missing(report, &[Need::Essential, Need::Full, Need::HugePages]);
    let works = match (lacks_essential(report), why.is_empty()) {
        (true, _) => Works::No,
        (false, true) => Works::Yes,
        (false, false) => {
            if !is_available(report, "userfaultfd") {
                why += "; a restore reads everything first";
            }
            Works::InPart
        }
    };
    Use { name: "save and restore memory", by: "cowslip restore, cowslip image", works, why, fixes }
}

fn running(copied: &Result<Duration, Error>) -> Use {
    let (works, why) = match copied {
        Ok(pause) => {
            (Works::Yes, format!("it stood still for {:.1} ms", pause.as_secs_f64() * 1e3))
        }
        Err(error) => (Works::No, error.to_string()),
    };
    let (name, by) = ("copy or undo running programs", "cowslip branch, warm, mark");
    Use { name, by, works, why, fixes: Vec::new() }
}

fn promote(findings: &Findings) -> Use {
    let collapse = findings.report.get("collapse-anonymous");
    let (works, why, fixes) = match collapse.map(|probe| &probe.answer) {
        Some(Answer::Available) if findings.may_promote => (Works::Yes, String::new(), Vec::new()),
        Some(Answer::Available) => (
            Works::No,
            "CAP_SYS_NICE is missing; --dry-run works for programs of one's own".to_owned(),
            vec![if process::effective_uid() == 0 { DOCKER_NICE } else { SETCAP }.to_owned()],
        ),
        _ => {
            let why =
                collapse.map_or(String::new(), |probe| format!("{}: {}", probe.name, probe.detail));
            (Works::No, why, collapse.and_then(|probe| probe.fix.clone()).into_iter().collect())
        }
    };
    Use { name: "huge pages for any program", by: "cowslip promote", works, why, fixes }
}

fn trace(permissions: &[Permission]) -> Use {
    let denied =
        |permission: &&Permission| matches!(permission.status, PermissionStatus::Denied { .. });
    let fix = |permission: &Permission| match permission.status {
        PermissionStatus::Denied { fix } => fix.map(str::to_owned),
        _ => None,
    };
    // Without the first one nothing can be traced.
    let can_trace =
        permissions.first().is_some_and(|first| first.status == PermissionStatus::Available);
    let missing: Vec<&Permission> = permissions.iter().filter(denied).collect();
    let (fixable, roots): (Vec<&Permission>, Vec<&Permission>) =
        missing.iter().copied().partition(|permission| fix(permission).is_some());
    let lists = [("", fixable), ("to root alone, outside of containers: ", roots)];
    let lists: Vec<String> = lists
        .into_iter()
        .filter(|(_, missing)| !missing.is_empty())
        .map(|(to, missing)| {
            let names: Vec<&str> = missing.iter().map(|permission| permission.name).collect();
            format!("{to}{}", names.join(", "))
        })
        .collect();
    let works = match (can_trace, missing.is_empty()) {
        (false, _) => Works::No,
        (true, true) => Works::Yes,
        (true, false) => Works::InPart,
    };
    let why = match (can_trace, missing.is_empty()) {
        (_, false) => format!("not permitted: {}", lists.join("; ")),
        (false, true) => "this kernel has no events of page faults".to_owned(),
        (true, true) => String::new(),
    };
    let mut fixes = Vec::new();
    for fix in missing.into_iter().filter_map(fix) {
        if !fixes.contains(&fix) {
            fixes.push(fix);
        }
    }
    Use { name: "record and explain page faults", by: "cowslip trace", works, why, fixes }
}

/// The missing capabilities for these needs, in words, and the commands that enable them.
fn missing(report: &Report, needs: &[Need]) -> (String, Vec<String>) {
    let (mut names, mut fixes) = (Vec::new(), Vec::new());
    for probe in report.capabilities.iter().filter(|probe| !probe.answer.is_available()) {
        let is_needed = match probe.need {
            Need::HugePages => needs.contains(&Need::HugePages) && !report.has_huge_pages(),
            need => needs.contains(&need),
        };
        if !is_needed {
            continue;
        }
        names.push(probe.name);
        fixes.extend(probe.fix.clone().filter(|fix| !fixes.contains(fix)));
    }
    let why =
        if names.is_empty() { String::new() } else { format!("missing: {}", names.join(", ")) };
    (why, fixes)
}

fn lacks_essential(report: &Report) -> bool {
    report
        .capabilities
        .iter()
        .any(|probe| probe.need == Need::Essential && !probe.answer.is_available())
}

fn is_available(report: &Report, name: &str) -> bool {
    report.get(name).is_some_and(|probe| probe.answer.is_available())
}

#[cfg(test)]
mod tests {
    use cowslip::host;

    use super::*;

    fn findings(may_promote: bool, status: PermissionStatus) -> Findings {
        let permission = Permission { name: "faults", gives: "each fault", status };
        let copied = Ok(Duration::from_millis(1));
        Findings { report: host::report(), permissions: vec![permission], may_promote, copied }
    }

    fn find<'a>(uses: &'a [Use], by: &str) -> &'a Use {
        uses.iter().find(|usage| usage.by == by).expect("there is such a use")
    }

    #[test]
    fn what_does_not_work_has_a_reason_and_a_command() {
        let denied = PermissionStatus::Denied { fix: Some("sysctl x=1") };
        let uses = uses(&findings(false, denied));
        let trace = find(&uses, "cowslip trace");
        assert_eq!(
            (trace.works, trace.fixes.as_slice()),
            (Works::No, &["sysctl x=1".to_owned()][..])
        );
        assert_eq!(find(&uses, "cowslip promote").works, Works::No);
        let of_root = findings(false, PermissionStatus::Denied { fix: None });
        let all = super::uses(&of_root);
        let trace = find(&all, "cowslip trace");
        assert!(
            trace.why.contains("to root alone, outside of containers: faults"),
            "{}",
            trace.why
        );
        assert_eq!(trace.fixes, [""; 0]);
        assert!(uses.iter().all(|usage| usage.works == Works::Yes || !usage.why.is_empty()));
        assert_eq!(find(&uses, "cowslip compare run").works, Works::Yes);
    }

    #[test]
    fn a_run_needs_thaw_and_huge_pages() {
        let mut findings = findings(true, PermissionStatus::Available);
        assert_eq!(find(&uses(&findings), "cowslip trace").works, Works::Yes);
        for probe in &mut findings.report.capabilities {
            if probe.name == "thaw" {
                probe.answer = Answer::Denied { hint: "a setting".into() };
                probe.cost = None;
            }
        }
        let uses = uses(&findings);
        let run = find(&uses, "cowslip run -- PROGRAM");
        assert_eq!(run.works, Works::No);
        assert!(run.why.contains("thaw"), "{}", run.why);
        assert_ne!(find(&uses, "docs/templates.md").works, Works::No, "it freezes all the same");
    }
}
