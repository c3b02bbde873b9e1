//! Maps pages of processes to their places in images.
//!
//! An image has one arena. The processes follow each other by number, each with its pages in the order of their
//! addresses and without gaps. The image's own words list these pages, one line per process:
//!
//! ```text
//!  criu.pages.PID = "gap+count gap+count@base:place …"   hexadecimal, in pages; a gap is counted from the end before it
//! ```
//! Pages with a place behind them are in that [base](crate::chain), at that place; the others are in the image itself.

use std::collections::BTreeMap;
use std::fmt::Write;

const KEY: &str = "criu.pages.";

/// A place of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// 0 is the image itself; its bases count from 1.
    pub(crate) image: usize,
    /// The distance from the first of them, in pages.
    pub(crate) at: u64,
}

/// Pages with neighbouring addresses, which are neighbours in an image too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    page: u64,
    pages: u64,
    /// The first page's.
    place: Place,
}

/// The places of each process' pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Index {
    processes: BTreeMap<u32, Vec<Run>>,
    own_pages: u64,
}

impl Index {
    /// Adds pages behind those that it has: to a place in a base, or else to the end of the image.
    pub(crate) fn push(&mut self, process: u32, page: u64, pages: u64, base: Option<Place>) {
        if pages == 0 {
            return;
        }
        let place = base.unwrap_or(Place { image: 0, at: self.own_pages });
        if place.image == 0 {
            self.own_pages += pages;
        }
        let runs = self.processes.entry(process).or_default();
        match runs.last_mut() {
            Some(last)
                if last.page + last.pages == page
                    && last.place.image == place.image
                    && last.place.at + last.pages == place.at =>
            {
                last.pages += pages;
            }
            _ => runs.push(Run { page, pages, place }),
        }
    }

    /// The number of pages in the image itself.
    pub(crate) fn own_pages(&self) -> u64 {
        self.own_pages
    }

    /// The number of pages, in whichever image.
    pub(crate) fn pages(&self) -> u64 {
        self.runs().map(|run| run.pages).sum()
    }

    fn runs(&self) -> impl Iterator<Item = &Run> {
        self.processes.values().flatten()
    }

    /// The number of pages that an image must have; `None` if it needs none of it.
    pub(crate) fn needs(&self, image: usize) -> Option<u64> {
        let runs = self.runs().filter(|run| run.place.image == image);
        runs.map(|run| run.place.at + run.pages).max()
    }

    /// The number of images that it may name: one more than the highest.
    pub(crate) fn images(&self) -> usize {
        self.runs().map(|run| run.place.image + 1).max().unwrap_or(0)
    }

    /// Gives images other numbers.
    pub(crate) fn renumber(&mut self, number: impl Fn(usize) -> usize) {
        for run in self.processes.values_mut().flatten() {
            run.place.image = number(run.place.image);
        }
    }

    /// The place of a page, and the number of `wanted` pages from there on that are neighbours.
    pub(crate) fn find(&self, process: u64, page: u64, wanted: u64) -> Option<(Place, u64)> {
        let runs = self.processes.get(&u32::try_from(process).ok()?)?;
        find(runs, page, wanted)
    }

    /// Like [`Self::find`]; if there is one process alone, it is meant, whatever its number is.
    pub(crate) fn find_like(&self, process: u32, page: u64, wanted: u64) -> Option<(Place, u64)> {
        let mut all = self.processes.values();
        let only = all.next().filter(|_| all.next().is_none());
        find(self.processes.get(&process).or(only)?, page, wanted)
    }

    /// Writes the index as the image's own words.
    pub(crate) fn to_words(&self) -> BTreeMap<String, String> {
        let line = |runs: &Vec<Run>| {
            let (mut line, mut end) = (String::new(), 0);
            for run in runs {
                let space = if line.is_empty() { "" } else { " " };
                write!(line, "{space}{:x}+{:x}", run.page - end, run.pages).expect("memory");
                if run.place.image > 0 {
                    write!(line, "@{:x}:{:x}", run.place.image, run.place.at).expect("memory");
                }
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
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (mut index, mut sum) = (Self::default(), 0_u64);
        for (process, line) in lines {
            let mut end = 0_u64;
            for word in line.split_ascii_whitespace() {
                let (gap, rest) = word.split_once('+')?;
                let (pages, place) = rest
                    .split_once('@')
                    .map_or((rest, None), |(pages, place)| (pages, Some(place)));
                let (page, pages) = (end.checked_add(number(gap)?)?, number(pages)?);
                end = page.checked_add(pages)?;
                sum = sum.checked_add(pages)?;
                let base = match place {
                    None => None,
                    Some(place) => {
                        let (image, at) = place.split_once(':')?;
                        let image =
                            usize::from_str_radix(image, 16).ok().filter(|number| *number > 0)?;
                        let at = number(at)?;
                        at.checked_add(pages)?;
                        Some(Place { image, at })
                    }
                };
                index.push(process, page, pages, base);
            }
        }
        Some(index)
    }
}

fn find(runs: &[Run], page: u64, wanted: u64) -> Option<(Place, u64)> {
    let run = runs[..runs.partition_point(|run| run.page <= page)].last()?;
    let into = page - run.page;
    let place = Place { at: run.place.at + into, ..run.place };
    (into < run.pages).then(|| (place, wanted.min(run.pages - into)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(at: u64) -> Place {
        Place { image: 0, at }
    }

    fn index() -> Index {
        let mut index = Index::default();
        for (process, page, pages, base) in [
            (9, 10, 3, None),
            (9, 20, 1, None),
            (9, 21, 4, None),
            (9, 25, 2, Some(Place { image: 2, at: 7 })),
            (9, 27, 1, Some(Place { image: 2, at: 9 })),
            (9, 28, 1, Some(Place { image: 1, at: 10 })),
            (9, 29, 0, None),
            (10, 11, 1, None),
        ] {
            index.push(process, page, pages, base);
        }
        index
    }

    #[test]
    fn pages_are_where_they_belong() {
        let index = index();
        assert_eq!((index.own_pages(), index.pages()), (9, 13));
        assert_eq!(
            [0, 1, 2, 3].map(|image| index.needs(image)),
            [Some(9), Some(11), Some(10), None]
        );
        for (process, page, wanted, expected) in [
            (9, 10, 1, Some((own(0), 1))),
            (9, 11, 9, Some((own(1), 2))),
            (9, 13, 1, None),
            (9, 20, 9, Some((own(3), 5))),
            (9, 26, 9, Some((Place { image: 2, at: 8 }, 2))),
            (9, 28, 9, Some((Place { image: 1, at: 10 }, 1))),
            (9, 29, 1, None),
            (10, 11, 1, Some((own(8), 1))),
            (10, 10, 1, None),
            (11, 10, 1, None),
            (1 << 32 | 9, 10, 1, None),
        ] {
            assert_eq!(index.find(process, page, wanted), expected, "{process} {page} {wanted}");
        }
        assert_eq!(index.find_like(11, 10, 1), None);
        let mut one = Index::default();
        one.push(9, 10, 1, None);
        assert_eq!(one.find_like(11, 10, 1), Some((own(0), 1)));
    }

    #[test]
    fn words_are_read_back_or_refused() {
        let words = index().to_words();
        assert_eq!(words["criu.pages.9"], "a+3 7+5 0+3@2:7 0+1@1:a");
        assert_eq!(Index::from_words(&words), Some(index()));
        for line in [
            "1",
            "1+",
            "+1",
            "g+1",
            "1+1 ffffffffffffffff+1",
            "1+ffffffffffffffff",
            "-1+2",
            "1+1@",
            "1+1@1",
            "1+1@0:1",
            "1+1@1:",
            "1+1@1:ffffffffffffffff",
        ] {
            let words = BTreeMap::from([(format!("{KEY}1"), line.to_owned())]);
            assert_eq!(Index::from_words(&words), None, "{line}");
        }
    }
}
