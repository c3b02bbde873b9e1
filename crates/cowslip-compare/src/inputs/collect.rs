//! Benchmarks of a file, collected by name.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::{Benchmark, Run};

/// The longest name of a benchmark or a metric, in bytes.
pub(super) const LONGEST_NAME: usize = 256;

/// Benchmarks in the order of their first runs.
#[derive(Default)]
pub(super) struct Benchmarks {
    all: Vec<Benchmark>,
    places: HashMap<String, usize>,
}

impl Benchmarks {
    /// The benchmark of a name, whose shown name is cut to a bounded length.
    fn named(&mut self, name: &str) -> &mut Benchmark {
        let place = match self.places.get(name) {
            Some(place) => *place,
            None => {
                self.all.push(Benchmark { name: clipped(name).to_owned(), runs: Vec::new() });
                self.places.insert(name.to_owned(), self.all.len() - 1);
                self.all.len() - 1
            }
        };
        &mut self.all[place]
    }

    /// Adds runs, called `FILE#1`, `FILE#2`, … by their numbers in the benchmark.
    pub(super) fn add(&mut self, name: &str, file: &str, new: impl IntoIterator<Item = Run>) {
        let mut new = new.into_iter().peekable();
        if new.peek().is_some() {
            let runs = &mut self.named(name).runs;
            for run in new {
                runs.push(Run { name: numbered(file, runs.len()), ..run });
            }
        }
    }

    pub(super) fn into_vec(self) -> Vec<Benchmark> {
        self.all
    }
}

/// The only benchmark of a file, which needs no name.
pub(super) fn unnamed(runs: Vec<Run>) -> Vec<Benchmark> {
    vec![Benchmark { name: String::new(), runs }]
}

/// The name of a run by its index.
pub(super) fn numbered(file: &str, index: usize) -> String {
    format!("{file}#{}", index + 1)
}

/// The beginning of a text that is too long for a name.
pub(super) fn clipped(text: &str) -> &str {
    beginning(text, LONGEST_NAME)
}

/// The characters of a text that fit in a number of bytes.
pub(super) fn beginning(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Facts by the JSON pointers of their values; those that are missing or empty are left out, long ones cut.
pub(super) fn facts(whole: &Value, pointers: &[(&str, &str)]) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(clipped(text).to_owned()).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    };
    let fact =
        |(fact, pointer): &(&str, &str)| Some(((*fact).to_owned(), text(whole.pointer(pointer)?)?));
    pointers.iter().filter_map(fact).collect()
}
