//! Checks that the lengths in the head of a `perf.data` can be true.
//!
//! The library that reads the file allocates memory by these lengths before it reads; a false one would end
//! this process.

use std::io::{self, Read, Seek, SeekFrom};

use crate::import::invalid;

/// The head: its sections, and a bit for each table after the records.
const SIZE_AT: usize = 8;
const ATTRIBUTE_SIZE_AT: usize = 16;
const SECTIONS_AT: [usize; 3] = [24, 40, 56];
const FEATURES_AT: usize = 72;
const HEAD_BYTES: usize = 104;
const SECTION_BYTES: usize = 16;

/// `PERF_RECORD_AUXTRACE`
const AUXTRACE: u32 = 71;
const CMDLINE: usize = 11;
const EVENT_DESC: usize = 12;
/// From here on, the tables are those of another program, Android's.
const SIMPLEPERF: usize = 128;
/// The smallest length ever used.
const ATTRIBUTE_LEAST_BYTES: u64 = 64;
/// Larger tables are not perf's.
const TABLE_MOST_BYTES: u64 = 64 << 20;

#[derive(Clone, Copy)]
struct Section {
    offset_bytes: u64,
    length_bytes: u64,
}

/// Checks the file, and leaves `input` at its beginning.
pub(super) fn check(mut input: impl Read + Seek) -> io::Result<()> {
    let file_bytes = input.seek(SeekFrom::End(0))?;
    let head = bytes(&mut input, Section { offset_bytes: 0, length_bytes: HEAD_BYTES as u64 })?;
    let is_inside = |section: Section| {
        section.offset_bytes.checked_add(section.length_bytes).is_some_and(|end| end <= file_bytes)
    };
    let [attributes, data, types] = SECTIONS_AT.map(|at| section(&head, at));
    let head_bytes = u64_at(&head, SIZE_AT);
    let are_inside = [attributes, data].into_iter().all(is_inside) && head_bytes <= file_bytes;
    ensure(are_inside, "its end is missing, or its head is wrong")?;
    ensure(types.length_bytes == 0, "its events are described in a way that perf no longer uses")?;
    let attribute_bytes = u64_at(&head, ATTRIBUTE_SIZE_AT);
    let has_events =
        attribute_bytes >= ATTRIBUTE_LEAST_BYTES && attributes.length_bytes >= attribute_bytes;
    ensure(has_events, "its events are described too briefly")?;

    let features: Vec<usize> = (0..8 * (HEAD_BYTES - FEATURES_AT))
        .filter(|bit| head[FEATURES_AT + bit / 8] >> (bit % 8) & 1 == 1)
        .collect();
    ensure(features.iter().all(|&bit| bit < SIMPLEPERF), "it is simpleperf's, not perf's")?;
    let offset_bytes = data.offset_bytes + data.length_bytes;
    let length_bytes = (features.len() * SECTION_BYTES) as u64;
    let index = bytes(&mut input, Section { offset_bytes, length_bytes })?;
    for (i, &feature) in features.iter().enumerate() {
        let table = section(&index, i * SECTION_BYTES);
        let is_right = is_inside(table) && table.length_bytes <= TABLE_MOST_BYTES;
        ensure(is_right, "a table behind its records is longer than the file")?;
        let is_right = match feature {
            EVENT_DESC => are_events(&bytes(&mut input, table)?),
            CMDLINE => are_words(&bytes(&mut input, table)?),
            _ => true,
        };
        ensure(is_right, "a table behind its records is not as long as it should be")?;
    }
    records(&mut input, data)?;
    input.rewind()
}

/// Records have 16 bits for their length. Those of processors' own traces, followed by data of any length,
/// are refused.
fn records(input: &mut (impl Read + Seek), data: Section) -> io::Result<()> {
    input.seek(SeekFrom::Start(data.offset_bytes))?;
    let mut input = input.take(data.length_bytes);
    while input.limit() > 0 {
        let mut head = [0; 8];
        input.read_exact(&mut head)?;
        let [kind @ .., _, _, _, _] = head;
        let length_bytes = u16::from_le_bytes([head[6], head[7]]);
        ensure(u32::from_le_bytes(kind) != AUXTRACE, "a processor's own trace is in it")?;
        let rest_bytes = u64::from(length_bytes).checked_sub(head.len() as u64);
        ensure(rest_bytes.is_some_and(|rest| rest <= input.limit()), "a record is too short")?;
        let mut rest = (&mut input).take(rest_bytes.unwrap_or_default());
        io::copy(&mut rest, &mut io::sink())?;
    }
    Ok(())
}

/// The number of events and the length of an attribute; then for each event its attribute, the number of its
/// ids, its name and its ids.
fn are_events(table: &[u8]) -> bool {
    let mut table = Table(table);
    let mut walk = || {
        let (events, attribute_bytes) = (table.number()?, table.number()?);
        (events > 0 && attribute_bytes >= ATTRIBUTE_LEAST_BYTES).then_some(())?;
        (0..events).try_for_each(|_| {
            table.skip(attribute_bytes)?;
            let ids = table.number()?;
            let name_bytes = table.number()?;
            table.skip(name_bytes)?;
            table.skip(8 * ids)
        })
    };
    walk().is_some()
}

/// The number of words, then each of them.
fn are_words(table: &[u8]) -> bool {
    let mut table = Table(table);
    let mut walk = || {
        let words = table.number()?;
        (0..words).try_for_each(|_| {
            let bytes = table.number()?;
            table.skip(bytes)
        })
    };
    walk().is_some()
}

/// The rest of a table.
struct Table<'a>(&'a [u8]);

impl Table<'_> {
    /// A number of 32 bits.
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*number).into())
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }
}

fn bytes(input: &mut (impl Read + Seek), section: Section) -> io::Result<Vec<u8>> {
    input.seek(SeekFrom::Start(section.offset_bytes))?;
    let mut bytes = Vec::new();
    let read = input.take(section.length_bytes).read_to_end(&mut bytes)?;
    ensure(read as u64 == section.length_bytes, "its end is missing")?;
    Ok(bytes)
}

fn section(bytes: &[u8], at: usize) -> Section {
    Section { offset_bytes: u64_at(bytes, at), length_bytes: u64_at(bytes, at + 8) }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn ensure(holds: bool, what: &str) -> io::Result<()> {
    if holds { Ok(()) } else { Err(invalid(format!("it is damaged: {what}"))) }
}
