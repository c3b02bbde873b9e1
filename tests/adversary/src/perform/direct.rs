//! Reads and writes past the page cache: the device reads and writes the program's pages themselves.

use core::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use libc::{EINVAL, O_CREAT, O_DIRECT, O_RDWR, c_int};

use super::{Me, SKIP};
use crate::model::Page;
use crate::program::Call;
use crate::shared::shared;
use crate::sys;
use crate::words::{self, Content, PAGE};

impl Me {
    /// Reads pages again and again past the page cache, while others fork and thaws come and go.
    pub(super) fn direct(&mut self, call: &Call) -> Option<()> {
        let (index, region) = self.mapping(call.number(0))?;
        let span = region.span(call.number(1), call.number(2).min(64), Page::writable)?;
        if !region.pages[span.start].writable() || !self.may_open {
            return SKIP;
        }
        let (at, len) = (region.at(span.start), span.len() * PAGE);
        let path = self.file();
        let fd = self.open_direct(&path)?;
        let until = Instant::now() + Duration::from_millis(call.number(3) as u64);
        let write = |round: usize| {
            span.clone()
                .for_each(|page| words::write(region.at(page), self.new_seed(page << 1 | round)));
        };
        write(0);
        self.expect("pwrite", sys::pwrite(fd, at, len, 0), Ok(len));
        loop {
            write(1);
            self.expect("pread", sys::pread(fd, at, len, 0), Ok(len));
            for page in span.clone() {
                let right = Content::Seed(self.new_seed(page << 1));
                if let Some(what) = words::wrong(&words::read(region.at(page)), right) {
                    self.fail(&format!("page {page} after a read past the page cache: {what}"));
                }
            }
            if Instant::now() > until {
                break;
            }
        }
        self.close(fd);
        let _ = std::fs::remove_file(path);
        for page in span {
            self.regions[index].pages[page].content = Content::Seed(self.new_seed(page << 1));
        }
        Some(())
    }

    /// `None` where the file system has no such thing.
    pub(super) fn open_direct(&self, path: &str) -> Option<c_int> {
        match sys::open(path, O_RDWR | O_CREAT | O_DIRECT) {
            Err(EINVAL) => {
                shared().totals.refused.fetch_add(1, Relaxed);
                None
            }
            fd => Some(fd.unwrap_or_else(|errno| self.fail(&format!("{path}: errno {errno}")))),
        }
    }
}
