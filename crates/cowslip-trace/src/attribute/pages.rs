//! Which pages of a process were touched, as far as the events say.
//!
//! Adjacent pages in the same state are one run: an event takes the room of one, however many pages it names. A fork
//! shares the earlier state with the child instead of copying it: each process looks through its own changes to it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The highest number of a page that is told from others: files are shorter.
pub(super) const MOST_PAGE: u64 = 1 << 52;

/// The known state of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Page {
    /// Nothing: no event touched it since it was mapped.
    Unseen,
    /// It is the process's own.
    Own,
    /// It was only read: zeroes, or a file's page.
    Clean,
    /// It was given back.
    Discarded,
    /// It was the process's own, or the parent's, before a fork, and was not touched since.
    OwnBeforeFork,
    /// It was only read before a fork, and was not touched since.
    CleanBeforeFork,
}

impl Page {
    fn is_present(self) -> bool {
        !matches!(self, Self::Unseen | Self::Discarded)
    }

    /// The same, once the process has forked.
    fn before_fork(self) -> Self {
        match self {
            Self::Own => Self::OwnBeforeFork,
            Self::Clean => Self::CleanBeforeFork,
            other => other,
        }
    }
}

/// Runs by their first page: the end and the state of each. No two overlap, and neighbours differ.
#[derive(Clone, Default, Debug)]
struct Runs(BTreeMap<u64, (u64, Page)>);

/// The pages of a process, by page number.
#[derive(Clone, Default, Debug)]
pub(super) struct Pages {
    /// Pages that are unseen here were forgotten, in any state that they had before the fork.
    since_fork: Runs,
    before_fork: Arc<Runs>,
}

impl Runs {
    fn get(&self, page: u64) -> Option<Page> {
        let (_, (end, known)) = self.0.range(..=page).next_back()?;
        (page < *end).then_some(*known)
    }

    /// Returns the known runs of `pages`, in order.
    fn within(&self, pages: &Range<u64>) -> impl Iterator<Item = (Range<u64>, Page)> + use<'_> {
        let (from, to) = (pages.start, pages.end.max(pages.start));
        let before = self.0.range(..from).next_back();
        let first = before.filter(|(_, (end, _))| *end > from && to > from);
        let first = first.map_or(from, |(start, _)| *start);
        let clip = move |(start, (end, page)): (&u64, &(u64, Page))| {
            (from.max(*start)..to.min(*end), *page)
        };
        self.0.range(first..to).map(clip)
    }

    fn set(&mut self, pages: Range<u64>, page: Page) {
        if pages.is_empty() {
            return;
        }
        self.clear(&pages);
        let Range { mut start, mut end } = pages;
        if let Some((its_start, its)) = self.0.range(..start).next_back()
            && *its == (start, page)
        {
            start = *its_start;
        }
        if let Some((its_end, _)) = self.0.get(&end).copied().filter(|its| its.1 == page) {
            self.0.remove(&end);
            end = its_end;
        }
        self.0.insert(start, (end, page));
    }

    fn clear(&mut self, pages: &Range<u64>) {
        if pages.is_empty() {
            return;
        }
        self.cut(pages.start);
        self.cut(pages.end);
        let starts: Vec<_> = self.0.range(pages.clone()).map(|(start, _)| *start).collect();
        starts.iter().for_each(|start| _ = self.0.remove(start));
    }

    /// Has no run on both sides of `at`.
    fn cut(&mut self, at: u64) {
        if let Some((_, its)) = self.0.range_mut(..at).next_back()
            && its.0 > at
        {
            let upper = *its;
            its.0 = at;
            self.0.insert(at, upper);
        }
    }
}

impl Pages {
    pub(super) fn get(&self, page: u64) -> Page {
        let older = || self.before_fork.get(page).map(Page::before_fork);
        self.since_fork.get(page).or_else(older).unwrap_or(Page::Unseen)
    }

    pub(super) fn set(&mut self, pages: Range<u64>, page: Page) {
        let older = match page {
            Page::OwnBeforeFork => Page::Own,
            Page::CleanBeforeFork => Page::Clean,
            page => return self.since_fork.set(pages, page),
        };
        self.since_fork.clear(&pages);
        Arc::make_mut(&mut self.before_fork).set(pages, older);
    }

    /// Those of `pages` that are there were given back.
    pub(super) fn discard_present(&mut self, pages: &Range<u64>) {
        for run in self.present(pages) {
            self.since_fork.set(run, Page::Discarded);
        }
    }

    /// They were unmapped, or other memory was mapped over them.
    pub(super) fn forget(&mut self, pages: Range<u64>) {
        self.since_fork.clear(&pages);
        for (run, _) in self.before_fork.within(&pages) {
            self.since_fork.set(run, Page::Unseen);
        }
    }

    /// They are elsewhere now: the state of each goes with it.
    pub(super) fn relocate(&mut self, from: Range<u64>, to: u64) {
        let moved = self.known(&from);
        self.forget(from.clone());
        self.forget(to..to + (from.end - from.start));
        for (run, page) in moved {
            self.set(run.start - from.start + to..run.end - from.start + to, page);
        }
    }

    /// How many of them are there, whether touched before or after a fork.
    pub(super) fn count_present(&self, pages: &Range<u64>) -> u64 {
        let count = |runs: &Runs, pages: &Range<u64>| -> u64 {
            let runs = runs.within(pages).filter(|(_, page)| page.is_present());
            runs.map(|(run, _)| run.end - run.start).sum()
        };
        let told = self.since_fork.within(pages).map(|(run, _)| count(&self.before_fork, &run));
        count(&self.since_fork, pages) + count(&self.before_fork, pages) - told.sum::<u64>()
    }

    /// Those that are there, as runs.
    pub(super) fn present(&self, pages: &Range<u64>) -> Vec<Range<u64>> {
        let known = self.known(pages).into_iter().filter(|(_, page)| page.is_present());
        known.map(|(run, _)| run).collect()
    }

    /// The process forks: its runs are shared with the returned child.
    pub(super) fn fork(&mut self) -> Self {
        let newer = std::mem::take(&mut self.since_fork);
        if !newer.0.is_empty() {
            let older = Arc::make_mut(&mut self.before_fork);
            for (start, (end, page)) in newer.0 {
                match page {
                    Page::Unseen => older.clear(&(start..end)),
                    page => older.set(start..end, page),
                }
            }
        }
        self.clone()
    }

    /// The number of runs that a child shares.
    pub(super) fn inherited(&self) -> usize {
        self.before_fork.0.len()
    }

    /// The known parts of `pages` from before and after the fork, in order.
    fn known(&self, pages: &Range<u64>) -> Vec<(Range<u64>, Page)> {
        let mut known = Vec::new();
        let mut from = pages.start;
        let end = (pages.end..pages.end, Page::Unseen);
        for (run, page) in self.since_fork.within(pages).chain([end]) {
            let older = self.before_fork.within(&(from..run.start));
            known.extend(older.map(|(run, page)| (run, page.before_fork())));
            from = run.end;
            if page != Page::Unseen {
                known.push((run, page));
            }
        }
        known
    }
}
