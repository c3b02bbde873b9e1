//! The loads of a server, and the sizes of its values.

use clap::ValueEnum;

use crate::demo::redis::load::{Pace, Traffic};
use crate::demo::redis::zipf::Zipf;

/// Requests a second of a load with a steady pace, and the percentage of reads.
pub(super) const PACED: u32 = 20_000;
const READS_PERCENT: u64 = 80;

const LARGE: usize = 4096;
const SMALL: usize = 100;
/// With the overhead of jemalloc and Redis such a value fills a page: each written value is a written page.
const PAGE: usize = 4000;

/// A load that can be selected.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// 50 clients that only write, values of 4 KiB, all as popular
    Writes,
    /// 20,000 requests a second, 80 % of them reads, values of 4 KiB, all as popular
    Paced,
    /// Like `writes`, popular by Zipf's law
    WritesZipf,
    /// Like `paced`, popular by Zipf's law
    PacedZipf,
    /// Like `writes`, values of 100 bytes
    WritesSmall,
    /// Like `paced`, values of 100 bytes
    PacedSmall,
    /// Like `writes-zipf`, values of 100 bytes
    WritesSmallZipf,
    /// Like `paced-zipf`, values of 100 bytes
    PacedSmallZipf,
    /// A tenth of all pages written at random once the save has begun, and nothing else
    Tenth,
    /// No client at all
    Still,
}

/// The load of a server while it saves.
#[derive(Debug, Clone, Copy)]
pub(super) enum Load {
    Clients(Traffic),
    /// Writes this many of all values once.
    Once(usize),
}

impl Part {
    /// Its name in the report.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub(super) fn value_bytes(self) -> usize {
        match self {
            Self::Writes | Self::Paced | Self::WritesZipf | Self::PacedZipf => LARGE,
            Self::WritesSmall | Self::PacedSmall | Self::WritesSmallZipf | Self::PacedSmallZipf => {
                SMALL
            }
            Self::Tenth | Self::Still => PAGE,
        }
    }

    /// Its load for a server with this many keys.
    pub(super) fn load(self, keys: usize) -> Load {
        let traffic = match self {
            Self::Tenth => return Load::Once(keys / 10),
            Self::Still => return Load::Once(0),
            Self::Writes | Self::WritesZipf | Self::WritesSmall | Self::WritesSmallZipf => {
                Traffic::WRITES
            }
            Self::Paced | Self::PacedZipf | Self::PacedSmall | Self::PacedSmallZipf => {
                let pace = Pace::Steady(PACED);
                Traffic { reads_percent: READS_PERCENT, pace, zipf: None }
            }
        };
        let is_zipf = matches!(
            self,
            Self::WritesZipf | Self::PacedZipf | Self::WritesSmallZipf | Self::PacedSmallZipf
        );
        Load::Clients(Traffic { zipf: is_zipf.then(|| Zipf::new(keys)), ..traffic })
    }

    /// The parts of a short run.
    pub(super) const SHORT: [Self; 2] = [Self::Writes, Self::Paced];
}
