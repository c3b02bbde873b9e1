//! The content of a page: words that identify their writer, so that a wrong one shows its origin.
//!
//! ```text
//! bits  63..52     51..44    43..28   27..12   11..0
//!       process+1  thread    call     page     word     of a fill
//!       0xFFF      sequence                    word     of a stream
//! ```
#![allow(unsafe_code)]

/// Bytes of a page. Other sizes would need another layout of the words.
pub(crate) const PAGE: usize = 4096;
const WORDS: usize = PAGE / size_of::<u64>();
const STREAM: u64 = 0xFFF << 52;
/// The process number in pages of the late server.
const LATE: usize = 0xFFD;

/// The expected content of a page. Word `i` of a seed's page is `seed + i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Zero,
    Seed(u64),
    /// The result of `MADV_FREE`: the old content or zeroes, until the next write.
    Either(u64),
    /// The sum of a page that a stream was writing when its process forked.
    Sum(u64),
    Unknown,
}

impl Content {
    /// True if only one content is possible.
    pub(crate) fn is_certain(self) -> bool {
        !matches!(self, Self::Either(_) | Self::Unknown)
    }
}

pub(crate) fn seed(process: usize, thread: usize, call: usize, page: usize) -> u64 {
    let fields = [(process + 1, 52), (thread & 0xFF, 44), (call & 0xFFFF, 28), (page & 0xFFFF, 12)];
    fields.into_iter().fold(0, |word, (field, shift)| word | (field as u64) << shift)
}

/// The content of a page in the late server's file.
pub(crate) fn late_seed(page: usize) -> u64 {
    seed(LATE, 0, 0, page)
}

pub(crate) fn stream_seed(sequence: u64) -> u64 {
    STREAM | sequence << 12
}

/// The sequence number of a stream's word.
pub(crate) fn sequence(word: u64) -> Option<u64> {
    (word >= STREAM).then_some((word & !STREAM) >> 12)
}

/// Process, thread and call that wrote a word of a seed.
pub(crate) fn writer(word: u64) -> Option<(usize, usize, usize)> {
    let field = |shift: u32, mask: u64| (word >> shift & mask) as usize;
    let process = field(52, 0xFFF).checked_sub(1)?;
    (word < STREAM && process != LATE).then(|| (process, field(44, 0xFF), field(28, 0xFFFF)))
}

/// Reads one page of the program's memory, or of a buffer, word by word, even while it is written.
pub(crate) fn read(at: usize) -> [u64; WORDS] {
    // SAFETY: by the model, a whole page is readable there; volatile, because other threads may write it.
    core::array::from_fn(|i| unsafe { (at as *const u64).add(i).read_volatile() })
}

/// Writes the page of a seed, in order.
pub(crate) fn write(at: usize, seed: u64) {
    for i in 0..WORDS {
        // SAFETY: by the model, a whole page is writable there, and belongs to this thread.
        unsafe { (at as *mut u64).add(i).write_volatile(seed + i as u64) }
    }
}

pub(crate) fn sum(words: &[u64; WORDS]) -> u64 {
    words.iter().fold(0, |sum, word| sum.rotate_left(5) ^ word.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn first_wrong(words: &[u64; WORDS], content: Content) -> Option<(usize, u64)> {
    let differs = |from: u64, step: u64| {
        let of = |i: usize| from + step * i as u64;
        (0..WORDS).find(|&i| words[i] != of(i)).map(|i| (i, of(i)))
    };
    match content {
        Content::Zero => differs(0, 0),
        Content::Seed(seed) => differs(seed, 1),
        Content::Either(seed) => differs(0, 0).and(differs(seed, 1)),
        Content::Sum(right) => (sum(words) != right).then_some((0, right)),
        Content::Unknown => None,
    }
}

/// The error in the page, if any.
pub(crate) fn wrong(words: &[u64; WORDS], content: Content) -> Option<String> {
    let (at, right) = first_wrong(words, content)?;
    let holds = say(words[at]);
    Some(match content {
        Content::Sum(_) => format!("changed after it was first seen, begins with {holds}"),
        _ => format!("word {at} holds {holds} instead of {}", say(right)),
    })
}

fn say(word: u64) -> String {
    let field = |shift: u32, mask: u64| word >> shift & mask;
    match word {
        0 => "zero".to_owned(),
        _ if word >= STREAM => format!("a stream's {}", field(12, (1 << 40) - 1)),
        _ if field(52, 0xFFF) == LATE as u64 + 1 => {
            format!("page {} of the late server's", field(12, 0xFFFF))
        }
        _ if word >> 52 == 0 => format!("{word:#x}, which nobody wrote"),
        _ => format!(
            "what process {} thread {} call {} wrote to page {}",
            field(52, 0xFFF) - 1,
            field(44, 0xFF),
            field(28, 0xFFFF),
            field(12, 0xFFFF)
        ),
    }
}
