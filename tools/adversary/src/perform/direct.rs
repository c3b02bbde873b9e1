//! Reads and writes that bypass the page cache: the device accesses the program's pages themselves.

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
    /// Reads pages repeatedly, bypassing the page cache, or from a [late server](crate::late), while other
    /// threads fork and thaws happen.
    pub(super) fn direct(&mut self, call: &Call) -> Option<()> {
        let (index, region) = self.mapping(call.number(0))?;
        let span = region.span(call.number(1), call.number(2).min(64), Page::writable)?;
        if !region.pages[span.start].writable() || !self.may_open {
            return SKIP;
        }
        let (at, len) = (region.at(span.start), span.len() * PAGE);
        let is_late = call.word(4) == "late-server";
        let path = if is_late { self.setting.late_file.clone() } else { self.file() };
        let fd = if is_late { self.open_late(&path) } else { self.open_direct(&path) }?;
        let until = Instant::now() + Duration::from_millis(call.number(3) as u64);
        let write = |round: usize| {
            span.clone()
                .for_each(|page| words::write(region.at(page), self.new_seed(page << 1 | round)));
        };
        let right = |page: usize| match is_late {
            true => Content::Seed(words::late_seed(page)),
            false => Content::Seed(self.new_seed(page << 1)),
        };
        let offset = if is_late { span.start * PAGE } else { 0 };
        if !is_late {
            write(0);
            self.expect("pwrite", sys::pwrite(fd, at, len, 0), Ok(len));
        }
        loop {
            write(1);
            self.expect("pread", sys::pread(fd, at, len, offset), Ok(len));
            for page in span.clone() {
                if let Some(what) = words::wrong(&words::read(region.at(page)), right(page)) {
                    self.fail(&format!("page {page} after a read past the page cache: {what}"));
                }
            }
            if Instant::now() > until {
                break;
            }
        }
        self.close(fd);
        if !is_late {
            let _ = std::fs::remove_file(path);
        }
        let contents: Vec<_> = span.clone().map(right).collect();
        for (page, content) in self.pages(index, span).iter_mut().zip(contents) {
            page.content = content;
        }
        Some(())
    }

    /// Opens the late file; `None` without FUSE.
    fn open_late(&self, path: &str) -> Option<c_int> {
        match sys::open(path, libc::O_RDONLY) {
            Err(libc::ENOENT) => None,
            fd => Some(fd.unwrap_or_else(|errno| self.fail(&format!("{path}: errno {errno}")))),
        }
    }

    /// Opens a file for direct access; `None` where the file system does not support it.
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
