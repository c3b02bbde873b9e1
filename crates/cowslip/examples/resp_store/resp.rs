//! The server's side of the Redis protocol (RESP 2).

/// The same as in Redis.
const MAX_WORDS: usize = 1 << 20;
const MAX_WORD_BYTES: usize = 512 << 20;
const MAX_LINE_BYTES: usize = 64 << 10;

/// The meaning of the beginning of the received bytes.
pub(crate) enum Received<'a> {
    /// A request of this many bytes. No words: an empty line.
    Request(Vec<&'a [u8]>, usize),
    Incomplete,
    Invalid(&'static str),
}

/// Reads one request: an array of strings, or a line of words.
pub(crate) fn parse(bytes: &[u8]) -> Received<'_> {
    let mut reader = Reader { bytes, at: 0 };
    match reader.request() {
        Ok(words) => Received::Request(words, reader.at),
        Err(Stop::Incomplete) => Received::Incomplete,
        Err(Stop::Invalid(why)) => Received::Invalid(why),
    }
}

enum Stop {
    Incomplete,
    Invalid(&'static str),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn request(&mut self) -> Result<Vec<&'a [u8]>, Stop> {
        if *self.bytes.first().ok_or(Stop::Incomplete)? != b'*' {
            let line = self.line("too big inline request")?;
            let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            return Ok(words.collect());
        }
        let count = self.number(b'*', MAX_WORDS, "invalid multibulk length")?;
        (0..count).map(|_| self.word()).collect()
    }

    fn word(&mut self) -> Result<&'a [u8], Stop> {
        if *self.bytes.get(self.at).ok_or(Stop::Incomplete)? != b'$' {
            return Err(Stop::Invalid("expected '$'"));
        }
        let length = self.number(b'$', MAX_WORD_BYTES, "invalid bulk length")?;
        let end = self.at + length;
        let word = self.bytes.get(self.at..end).ok_or(Stop::Incomplete)?;
        let ending = self.bytes.get(end..end + 2).ok_or(Stop::Incomplete)?;
        self.at = end + 2;
        if ending == b"\r\n" { Ok(word) } else { Err(Stop::Invalid("a string without its end")) }
    }

    fn number(&mut self, kind: u8, most: usize, why: &'static str) -> Result<usize, Stop> {
        let line = self.line(why)?;
        let digits = line.strip_prefix(&[kind]).and_then(|digits| str::from_utf8(digits).ok());
        let number = digits.and_then(|digits| digits.parse().ok());
        number.filter(|&number| number <= most).ok_or(Stop::Invalid(why))
    }

    fn line(&mut self, too_long: &'static str) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let searched = &rest[..rest.len().min(MAX_LINE_BYTES)];
        let Some(length) = searched.iter().position(|&byte| byte == b'\n') else {
            let is_too_long = rest.len() >= MAX_LINE_BYTES;
            return Err(if is_too_long { Stop::Invalid(too_long) } else { Stop::Incomplete });
        };
        self.at += length + 1;
        Ok(rest[..length].strip_suffix(b"\r").unwrap_or(&rest[..length]))
    }
}

/// Replies to send.
#[derive(Default)]
pub(crate) struct Replies(pub(crate) Vec<u8>);

impl Replies {
    pub(crate) fn status(&mut self, text: &str) {
        self.line('+', text);
    }

    pub(crate) fn error(&mut self, text: &str) {
        self.line('-', text);
    }

    pub(crate) fn integer(&mut self, number: impl ToString) {
        self.line(':', &number.to_string());
    }

    pub(crate) fn string(&mut self, bytes: &[u8]) {
        self.line('$', &bytes.len().to_string());
        self.0.extend_from_slice(bytes);
        self.0.extend_from_slice(b"\r\n");
    }

    pub(crate) fn nil(&mut self) {
        self.line('$', "-1");
    }

    /// Begins an array of `length` replies.
    pub(crate) fn array(&mut self, length: usize) {
        self.line('*', &length.to_string());
    }

    fn line(&mut self, kind: char, text: &str) {
        self.0.push(kind as u8);
        self.0.extend_from_slice(text.as_bytes());
        self.0.extend_from_slice(b"\r\n");
    }
}
