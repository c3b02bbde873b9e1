//! The beginning of a trace: its prelude and its header.

use std::io::{self, Read};

use super::layout::{HEADER_MOST_BYTES, MAGIC, PRELUDE_BYTES, VERSION, checksum};
use super::{check, damage};
use crate::model::Header;

/// The first bytes of an image (docs/image-format.md).
const IMAGE_MAGIC: [u8; 8] = *b"COWSLIPI";

pub(super) fn encode(header: &Header) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(header)?;
    let length = u32::try_from(json.len()).ok().filter(|&length| length <= HEADER_MOST_BYTES);
    let length = length.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "a trace's header has more than 16 MiB")
    })?;
    let mut bytes = Vec::with_capacity(PRELUDE_BYTES + json.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((PRELUDE_BYTES as u32).to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(checksum(&json));
    bytes.extend(checksum(&bytes));
    bytes.extend(json);
    Ok(bytes)
}

/// The header and the number of bytes read.
pub(super) fn decode(input: &mut impl Read) -> io::Result<(Header, u64)> {
    const CUT: &str = "the file ends inside its header";
    let mut prelude = Vec::with_capacity(PRELUDE_BYTES);
    input.take(PRELUDE_BYTES as u64).read_to_end(&mut prelude)?;
    let image = prelude.starts_with(&IMAGE_MAGIC);
    check(!image, "this is an image, no trace: `cowslip image info` reads it")
        .map_err(|what| damage(0, what))?;
    let is_trace = prelude.starts_with(&MAGIC) || MAGIC.starts_with(&prelude);
    check(is_trace, "this is no Cowslip trace").map_err(|what| damage(0, what))?;
    let prelude: [u8; PRELUDE_BYTES] = prelude.try_into().map_err(|_| damage(0, CUT))?;
    let u32_at = |at: usize| u32::from_le_bytes(prelude[at..at + 4].try_into().expect("4 bytes"));
    let flags = u64::from_le_bytes(prelude[16..24].try_into().expect("8 bytes"));
    let checks = [
        (u32_at(8) == VERSION, 8, "a version that this program does not know"),
        (checksum(&prelude[..48]) == prelude[48..], 48, "the prelude's checksum is wrong"),
        (u32_at(12) == PRELUDE_BYTES as u32, 12, "a prelude of another length"),
        (flags == 0, 16, "flags that this program does not know"),
        (u32_at(24) <= HEADER_MOST_BYTES, 24, "a header of more than 16 MiB"),
    ];
    for (holds, at, what) in checks {
        check(holds, what).map_err(|what| damage(at, what))?;
    }
    let length = u64::from(u32_at(24));
    let mut json = Vec::new();
    let read = input.take(length).read_to_end(&mut json)?;
    let at = PRELUDE_BYTES as u64;
    check(read as u64 == length, CUT).map_err(|what| damage(at, what))?;
    let is_right = checksum(&json) == prelude[32..48];
    check(is_right, "the header's checksum is wrong").map_err(|what| damage(at, what))?;
    let header = serde_json::from_slice(&json).map_err(|error| damage(at, &error.to_string()))?;
    Ok((header, at + length))
}
