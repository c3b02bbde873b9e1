//! The system's pool of 2 MiB hugetlb pages, made large enough for a while.

use std::fs::{self, File};
use std::io::{self, Write};

use cowslip::units::CHUNK_BYTES;

use super::child::Child;
use super::error::{Error, Result, during};

const DIRECTORY: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const SIZE: &str = "nr_hugepages";

/// Keeps the requested pages in the pool while it lives, and then restores the pool's size. A child does that, even if
/// this process is killed.
#[derive(Debug)]
pub(crate) struct Pool {
    _restorer: Option<Child>,
}

impl Pool {
    pub(crate) fn with_free_bytes(bytes: usize) -> Result<Self> {
        let read = |name| read(name).map_err(during(format_args!("read {DIRECTORY}/{name}")));
        let before = read(SIZE)?;
        let free = read("free_hugepages")?.saturating_sub(read("resv_hugepages")?);
        let missing = (bytes.div_ceil(CHUNK_BYTES) as u64).saturating_sub(free);
        if missing == 0 {
            return Ok(Self { _restorer: None });
        }
        let wanted = before + missing;
        let path = format!("{DIRECTORY}/{SIZE}");
        let setting = || File::options().write(true).open(&path);
        let opened = setting().map_err(during("change vm.nr_hugepages"))?;
        let restorer = Child::executor(vec![(opened, before.to_string())])?;
        let set = setting().and_then(|mut file| file.write_all(wanted.to_string().as_bytes()));
        set.map_err(during(format_args!("set vm.nr_hugepages to {wanted}")))?;
        let pool = Self { _restorer: Some(restorer) };
        let got = read(SIZE)?;
        if got < wanted {
            let why = format!("the kernel gave {got} of {wanted} hugetlb pages (vm.nr_hugepages)");
            return Err(Error::Failed(why));
        }
        Ok(pool)
    }

    /// Takes all huge pages that are free, or that the kernel can make of free memory, up to `most`.
    pub(crate) fn with_all_free(most: u64) -> Result<Self> {
        let before = read(SIZE).map_err(during(format_args!("read {DIRECTORY}/{SIZE}")))?;
        let path = format!("{DIRECTORY}/{SIZE}");
        let setting = || File::options().write(true).open(&path);
        let opened = setting().map_err(during("change vm.nr_hugepages"))?;
        let pool = Self { _restorer: Some(Child::executor(vec![(opened, before.to_string())])?) };
        let wanted = (before + most).to_string();
        let set = setting().and_then(|mut file| file.write_all(wanted.as_bytes()));
        set.map_err(during(format_args!("set vm.nr_hugepages to {wanted}")))?;
        Ok(pool)
    }

    /// Makes so many of its pages free for other uses.
    pub(crate) fn give_back(&self, pages: u64) -> Result<()> {
        let path = format!("{DIRECTORY}/{SIZE}");
        let now = read(SIZE).map_err(during(format_args!("read {path}")))?;
        let left = now.saturating_sub(pages).to_string();
        fs::write(&path, left).map_err(during("change vm.nr_hugepages"))
    }
}

fn read(name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("{DIRECTORY}/{name}"))?;
    text.trim().parse().map_err(io::Error::other)
}
