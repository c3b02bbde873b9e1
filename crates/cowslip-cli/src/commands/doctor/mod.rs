//! `cowslip doctor`: what works here, at what cost, and which command mends what does not.

mod args;

use std::env;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use cowslip::host::{self, Answer as Found, Capability, Need, Report, Standing};
use cowslip_report::json;
use serde_json::{Map, Value, json};

use crate::exit::{self, CommandResult, DENIED, NO, UNSUPPORTED};
pub(super) use args::Args;

pub(super) fn run(args: Args) -> CommandResult {
    let report = host::report();
    if let Some(file) = &args.json {
        json::write(&to_json(&report), file).map_err(exit::io("write the report"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        print(&table(&report, Paint::of_stdout())).map_err(exit::io("print the table"))?;
    }
    Ok(ExitCode::from(exit_code(report.standing())))
}

fn exit_code(standing: Standing) -> u8 {
    match standing {
        Standing::Full => 0,
        Standing::Partly | Standing::Failed => NO,
        Standing::Unsupported => UNSUPPORTED,
        Standing::Denied => DENIED,
    }
}

fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::Full => "full",
        Standing::Partly => "partly",
        Standing::Denied => "denied",
        Standing::Unsupported => "unsupported",
        Standing::Failed => "failed",
    }
}

fn to_json(report: &Report) -> Value {
    let capabilities: Vec<_> = report.capabilities.iter().map(capability).collect();
    let standing = report.standing();
    json!({
        "schema": "cowslip.doctor/1",
        "capabilities": capabilities,
        "verdict": {
            "standing": word(standing),
            "exit_code": exit_code(standing),
            "huge_pages": report.has_huge_pages(),
            "sentence": report.sentence(),
            "mends": report.mends(),
        },
    })
}

/// What there is nothing to say about is left out.
fn capability(it: &Capability) -> Map<String, Value> {
    let (errno, hint) = match &it.answer {
        Found::Unknown { errno } => (Some(*errno), None),
        Found::Denied { hint } => (None, Some(hint)),
        _ => (None, None),
    };
    let detail = Some(&it.detail).filter(|detail| !detail.is_empty());
    let fields = [
        ("name", json!(it.name)),
        ("what_for", json!(it.what_for)),
        ("answer", json!(it.answer.word())),
        ("errno", json!(errno)),
        ("hint", json!(hint)),
        ("cost_ns", json!(it.cost.map(|cost| cost.ns))),
        ("cost_per", json!(it.cost.map(|cost| cost.per))),
        ("detail", json!(detail)),
        ("fix", json!(it.fix)),
    ];
    let said = fields.into_iter().filter(|(_, value)| !value.is_null());
    said.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Columns of one line, and where the lines below it begin.
const NAME: usize = 22;
const ANSWER: usize = 13;
const COST: usize = 24;
const WIDTH: usize = 99;

const BOLD: &str = "1";
const DIM: &str = "2";
const GOOD: &str = "32";
const WARN: &str = "33";
const BAD: &str = "1;31";

/// Whether to use ANSI escapes.
#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn of_stdout() -> Self {
        let plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self(io::stdout().is_terminal() && !plain)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn table(report: &Report, paint: Paint) -> String {
    let heads = format!("{:NAME$}{:ANSWER$}{:COST$}what for", "capability", "answer", "cost here");
    let mut lines = vec![paint.paint(BOLD, &heads)];
    let mut told = Vec::new();
    for it in &report.capabilities {
        let hurts = match it.need {
            Need::Extra => false,
            Need::HugePages => !report.has_huge_pages(),
            _ => true,
        };
        let (answer, code) = match &it.answer {
            Found::Available => ("yes".to_owned(), GOOD),
            Found::Unsupported => ("no".to_owned(), if hurts { BAD } else { WARN }),
            Found::Denied { .. } => ("denied".to_owned(), if hurts { BAD } else { WARN }),
            Found::Unknown { errno: 0 } => ("failed".to_owned(), BAD),
            Found::Unknown { errno } => (format!("failed ({errno})"), BAD),
        };
        let answer = paint.paint(code, &format!("{answer:ANSWER$}"));
        let cost = it.cost.map_or(String::new(), |cost| cost.to_string());
        lines.push(format!("{:NAME$}{answer}{cost:COST$}{}", it.name, it.what_for));

        if !it.detail.is_empty() && (it.cost.is_none() || it.need != Need::Extra) {
            lines.extend(below(&it.detail).map(|line| paint.paint(DIM, &line)));
        }
        if let Found::Denied { hint } = &it.answer
            && is_new(&mut told, hint)
        {
            lines.extend(below(hint));
        }
        if let Some(fix) = &it.fix
            && is_new(&mut told, fix)
        {
            lines.push(format!("{:NAME$}run: {}", "", paint.paint(BOLD, fix)));
        }
    }
    lines.push(String::new());
    let code = if report.standing() == Standing::Full { GOOD } else { BAD };
    lines.extend(wrap(&report.sentence(), WIDTH).map(|line| paint.paint(code, &line)));
    lines.join("\n") + "\n"
}

/// Each advice is told once.
fn is_new<'a>(told: &mut Vec<&'a str>, text: &'a str) -> bool {
    let is_new = !told.contains(&text);
    told.push(text);
    is_new
}

fn below(text: &str) -> impl Iterator<Item = String> {
    wrap(text, WIDTH - NAME).map(|line| format!("{:NAME$}{line}", ""))
}

/// Breaks `text` between words, but not inside a command in backquotes.
fn wrap(text: &str, width: usize) -> impl Iterator<Item = String> {
    let mut lines = vec![String::new()];
    let mut is_command = false;
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always one");
        let length = line.chars().count() + 1 + word.chars().count();
        if line.is_empty() {
            line.push_str(word);
        } else if length > width && !is_command {
            lines.push(word.to_owned());
        } else {
            *line += &format!(" {word}");
        }
        is_command ^= word.matches('`').count() % 2 == 1;
    }
    lines.into_iter()
}

fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // A reader that went away (`| head`) is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_table_tell_the_same() {
        let report = host::report();
        let json = to_json(&report);
        let (plain, colour) = (table(&report, Paint(false)), table(&report, Paint(true)));
        assert_eq!(json["schema"], "cowslip.doctor/1");
        for it in json["capabilities"].as_array().unwrap() {
            let name = it["name"].as_str().unwrap();
            assert!(plain.lines().any(|line| line.starts_with(name)), "{name}: {plain}");
            let told = plain.lines().filter(|line| line.starts_with(name));
            assert!(told.clone().all(|line| line.chars().count() <= WIDTH), "{plain}");
            assert!(it["answer"] == "available" || it.get("cost_ns").is_none(), "{it}");
        }
        assert!(!plain.contains('\x1b') && colour.contains('\x1b'));
        assert_eq!(json["verdict"]["exit_code"], exit_code(report.standing()));
        assert_eq!(wrap(&report.sentence(), WIDTH).last(), plain.lines().last().map(str::to_owned));
    }

    #[test]
    fn a_command_stays_on_one_line() {
        let lines: Vec<_> = wrap("run the command `echo advise > file` as root", 12).collect();
        assert_eq!(lines, ["run the", "command", "`echo advise > file`", "as root"]);
    }
}
