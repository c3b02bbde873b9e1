//! Compresses and decompresses chunks.

use std::fmt;
use std::str::FromStr;

use cowslip_sys::error::{Error, ErrorKind, Result};
use lz4_flex::block;
use zstd::bulk;

use super::format::Encoding;

const LEVELS: std::ops::RangeInclusive<i32> = 1..=22;
const DEFAULT_LEVEL: i32 = 3;

/// The compression of an image's chunks, each by itself. A chunk that would not shrink by an eighth is stored plain.
///
/// ```
/// use cowslip::image::Compression;
/// assert_eq!("zstd:9".parse::<Compression>()?, Compression::Zstd(9));
/// assert_eq!(Compression::Lz4.to_string(), "lz4");
/// # Ok::<(), cowslip::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// No compression: the fastest to write and to read, and chunks can be mapped from the file.
    #[default]
    None,
    /// LZ4 blocks.
    Lz4,
    /// Zstandard at a level from 1 to 22: higher is smaller and slower.
    Zstd(i32),
}

impl FromStr for Compression {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::Usage`] for anything but `none`, `lz4`, `zstd` (level 3) and `zstd:LEVEL`.
    fn from_str(text: &str) -> Result<Self> {
        let level = text.strip_prefix("zstd:").and_then(|level| level.parse().ok());
        match (text, level) {
            ("none", _) => Ok(Self::None),
            ("lz4", _) => Ok(Self::Lz4),
            ("zstd", _) => Ok(Self::Zstd(DEFAULT_LEVEL)),
            (_, Some(level)) if LEVELS.contains(&level) => Ok(Self::Zstd(level)),
            _ => Err(Error::new(ErrorKind::Usage, "choose a compression")
                .because("none, lz4, zstd or zstd:LEVEL (1 to 22) is wanted")),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

/// The state with which one thread compresses.
pub(super) enum Compressor {
    None,
    Lz4,
    Zstd(bulk::Compressor<'static>),
}

impl Compressor {
    pub(super) fn new(compression: Compression) -> Result<Self> {
        const OPERATION: &str = "compress an image";
        match compression {
            Compression::None => Ok(Self::None),
            Compression::Lz4 => Ok(Self::Lz4),
            Compression::Zstd(level) if LEVELS.contains(&level) => {
                bulk::Compressor::new(level).map(Self::Zstd).map_err(|error| {
                    Error::new(ErrorKind::OutOfMemory, OPERATION).because(error.to_string())
                })
            }
            Compression::Zstd(_) => {
                Err(Error::new(ErrorKind::Usage, OPERATION).because("zstd has levels from 1 to 22"))
            }
        }
    }

    /// The space that it needs for the result.
    pub(super) fn most_bytes(&self, length: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Lz4 => block::get_maximum_output_size(length),
            Self::Zstd(_) => zstd::zstd_safe::compress_bound(length),
        }
    }

    /// Compresses `bytes` to the beginning of `packed`; returns the encoding and the length.
    pub(super) fn pack(&mut self, bytes: &[u8], packed: &mut [u8]) -> Option<(Encoding, usize)> {
        match self {
            Self::None => None,
            Self::Lz4 => {
                block::compress_into(bytes, packed).ok().map(|length| (Encoding::Lz4, length))
            }
            Self::Zstd(zstd) => {
                let length = zstd.compress_to_buffer(bytes, packed);
                length.ok().map(|length| (Encoding::Zstd, length))
            }
        }
    }
}

/// The state with which one thread decompresses.
#[derive(Default)]
pub(super) struct Decompressor {
    zstd: Option<bulk::Decompressor<'static>>,
}

impl Decompressor {
    /// Decompresses `packed` to `bytes`; returns true if it filled them exactly.
    pub(super) fn unpack(&mut self, encoding: Encoding, packed: &[u8], bytes: &mut [u8]) -> bool {
        let length = match encoding {
            Encoding::Zero | Encoding::Plain => None,
            Encoding::Lz4 => block::decompress_into(packed, bytes).ok(),
            Encoding::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = bulk::Decompressor::new().ok();
                }
                let zstd = self.zstd.as_mut();
                zstd.and_then(|zstd| zstd.decompress_to_buffer(packed, bytes).ok())
            }
        };
        length == Some(bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd(22)] {
            assert_eq!(compression.to_string().parse::<Compression>().unwrap(), compression);
        }
        for wrong in ["", "gzip", "zstd:0", "zstd:23", "zstd:", "lz4:1", "LZ4"] {
            let error = wrong.parse::<Compression>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{wrong}");
        }
        assert!(Compressor::new(Compression::Zstd(23)).is_err());
    }
}
