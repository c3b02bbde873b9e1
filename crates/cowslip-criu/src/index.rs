//! Maps pages of processes to their places in an image.
//!
//! The image has one arena. The processes follow each other by number, each with its pages in the order of their
//! addresses and without gaps. The image's own words list these pages, one line per process:
//!
//! ```text
//!  criu.pages.PID = "gap+count gap+count …"      hexadecimal, in pages; a gap is counted from the end before it
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::pages::Stretch;

const KEY: &str = "criu.pages.";

/// Pages with neighbouring addresses, which are neighbours in the image too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    page: u64,
    pages: u64,
    /// The first page's place in the image, in pages.
    at: u64,
}

/// The places of each process' pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Index {
    processes: BTreeMap<u32, Vec<Run>>,
    pages: u64,
}

impl Index {
    /// Gives the lazy stretches of each process their places, in order.
    pub(crate) fn from_processes<'a>(
        processes: impl IntoIterator<Item = (u32, &'a [Stretch])>,
    ) -> Self {
        let sorted: BTreeMap<_, _> = processes.into_iter().collect();
        let mut index = Self::default();
        for (process, stretches) in sorted {
            let lazy = stretches.iter().filter(|stretch| stretch.is_lazy);
            index.add(process, lazy.map(|stretch| (stretch.page, stretch.pages)));
        }
        index
    }

    fn add(&mut self, process: u32, ranges: impl Iterator<Item = (u64, u64)>) {
        let mut runs: Vec<Run> = Vec::new();
        for (page, pages) in ranges {
            match runs.last_mut() {
                Some(last) if last.page + last.pages == page => last.pages += pages,
                _ => runs.push(Run { page, pages, at: self.pages }),
            }
            self.pages += pages;
        }
        if !runs.is_empty() {
            self.processes.insert(process, runs);
        }
    }

    /// The number of pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// The place of a page, and the number of `wanted` pages from there on that are neighbours.
    pub(crate) fn find(&self, process: u64, page: u64, wanted: u64) -> Option<(u64, u64)> {
        let runs = self.processes.get(&u32::try_from(process).ok()?)?;
        let run = runs[..runs.partition_point(|run| run.page <= page)].last()?;
        let into = page - run.page;
        (into < run.pages).then(|| (run.at + into, wanted.min(run.pages - into)))
    }

    /// Writes the index as the image's own words.
    pub(crate) fn to_words(&self) -> BTreeMap<String, String> {
        let line = |runs: &Vec<Run>| {
            let (mut line, mut end) = (String::new(), 0);
            for run in runs {
                let space = if line.is_empty() { "" } else { " " };
                write!(line, "{space}{:x}+{:x}", run.page - end, run.pages).expect("memory");
                end = run.page + run.pages;
            }
            line
        };
        let words = self.processes.iter();
        words.map(|(process, runs)| (format!("{KEY}{process}"), line(runs))).collect()
    }

    /// Reads the index from the image's own words; `None` if they hold none that is valid.
    pub(crate) fn from_words(words: &BTreeMap<String, String>) -> Option<Self> {
        let mut lines = BTreeMap::new();
        for (key, line) in words {
            if let Some(process) = key.strip_prefix(KEY) {
                lines.insert(process.parse::<u32>().ok()?, line);
            }
        }
        let (mut index, mut sum) = (Self::default(), 0_u64);
        for (process, line) in lines {
            let (mut ranges, mut end) = (Vec::new(), 0_u64);
            for word in line.split_ascii_whitespace() {
                let (gap, pages) = word.split_once('+')?;
                let page = end.checked_add(u64::from_str_radix(gap, 16).ok()?)?;
                let pages = u64::from_str_radix(pages, 16).ok()?;
                end = page.checked_add(pages)?;
                sum = sum.checked_add(pages)?;
                ranges.push((page, pages));
            }
            index.add(process, ranges.into_iter());
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> Index {
        let lazy = |page, pages| Stretch { page, pages, at: 0, is_lazy: true, blocks: None };
        let eager = Stretch { page: 13, pages: 2, at: 0, is_lazy: false, blocks: None };
        let (nine, ten) = ([lazy(10, 3), eager, lazy(20, 1), lazy(21, 4)], [lazy(11, 1)]);
        Index::from_processes([(10, &ten[..]), (9, &nine[..])])
    }

    #[test]
    fn pages_are_where_they_belong() {
        let index = index();
        assert_eq!(index.pages(), 9);
        for (process, page, wanted, expected) in [
            (9, 10, 1, Some((0, 1))),
            (9, 11, 9, Some((1, 2))),
            (9, 13, 1, None),
            (9, 20, 9, Some((3, 5))),
            (9, 25, 1, None),
            (10, 11, 9, Some((8, 1))),
            (10, 10, 1, None),
            (11, 10, 1, None),
            (1 << 32 | 9, 10, 1, None),
        ] {
            assert_eq!(index.find(process, page, wanted), expected, "{process} {page} {wanted}");
        }
    }

    #[test]
    fn words_are_read_back_or_refused() {
        let words = index().to_words();
        assert_eq!(words["criu.pages.9"], "a+3 7+5");
        assert_eq!(Index::from_words(&words), Some(index()));
        for line in ["1", "1+", "+1", "g+1", "1+1 ffffffffffffffff+1", "1+ffffffffffffffff", "-1+2"]
        {
            let words = BTreeMap::from([(format!("{KEY}1"), line.to_owned())]);
            assert_eq!(Index::from_words(&words), None, "{line}");
        }
    }
}
