//! Files that are encrypted as a whole, in the format of [age](https://age-encryption.org/v1).
//!
//! Its payload is in pieces of 64 KiB, each with a tag of its own, so that an image is read at random.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use age::stream::StreamReader;
use age::{DecryptError, Decryptor, EncryptError, Encryptor};
use cowslip::image::{ImageIdentity, ImageSource, OnArrival, Urgency};
use cowslip::units::CHUNK_BYTES;
use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;

use crate::keys::Keys;

const ENCRYPT: &str = "encrypt a file";
const DECRYPT: &str = "decrypt a file";

/// Encrypts the content of `from` into a new file, and returns its length.
pub(crate) fn encrypt(keys: &Keys, from: &mut impl Read, path: &Path) -> Result<u64> {
    let recipients = keys.recipients.iter().map(|recipient| recipient as &dyn age::Recipient);
    let encryptor = Encryptor::with_recipients(recipients).map_err(|error| match error {
        EncryptError::Io(error) => file_error(ENCRYPT, path, error),
        other => Error::new(ErrorKind::Usage, ENCRYPT).because(other.to_string()),
    })?;
    let written = File::create_new(path).and_then(|file| {
        let mut writer = encryptor.wrap_output(BufWriter::with_capacity(1 << 20, file))?;
        io::copy(from, &mut writer)?;
        let mut file = writer.finish()?;
        file.flush()?;
        file.get_ref().metadata()
    });
    written.map(|there| there.len()).map_err(|error| file_error(ENCRYPT, path, error))
}

/// Reads all of an encrypted file, which must not be longer than `most_bytes`.
pub(crate) fn decrypt(keys: &Keys, path: &Path, most_bytes: u64) -> Result<Vec<u8>> {
    let file = regular::open(path).map_err(|error| file_error(DECRYPT, path, error))?;
    let length = file.metadata().map_err(|error| file_error(DECRYPT, path, error))?.len();
    if length > most_bytes {
        let why = format!("it is longer than {} MiB", most_bytes >> 20);
        return Err(Error::new(ErrorKind::Corrupt, DECRYPT).of_file(path).because(why));
    }
    let mut bytes = Vec::new();
    let read = open(keys, path, Arc::new(file))?.read_to_end(&mut bytes);
    read.map_err(|error| not_read(path, error)).map(|_| bytes)
}

type Plaintext = StreamReader<BufReader<Cursor>>;

fn open(keys: &Keys, path: &Path, file: Arc<File>) -> Result<Plaintext> {
    let refused = |kind, why: &'static str| Error::new(kind, DECRYPT).of_file(path).because(why);
    if keys.identities.is_empty() {
        let error = refused(ErrorKind::Usage, "it is encrypted");
        return Err(error.advise("name a file with its key by --identity"));
    }
    const NO_HEADER: &str = "it is no file of age, or its header is damaged";
    if !has_header(&file).map_err(|error| not_read(path, error))? {
        return Err(refused(ErrorKind::Corrupt, NO_HEADER));
    }
    let identities = keys.identities.iter().map(|identity| identity as &dyn age::Identity);
    let decryptor = Decryptor::new_buffered(BufReader::new(Cursor { file, at: 0 }));
    let reader = decryptor.and_then(|decryptor| decryptor.decrypt(identities));
    reader.map_err(|error| match error {
        DecryptError::NoMatchingKeys => refused(ErrorKind::Denied, "it is encrypted to other keys")
            .advise("name a file with a key that opens it by --identity"),
        DecryptError::Io(error) => not_read(path, error),
        _ => refused(ErrorKind::Corrupt, NO_HEADER),
    })
}

/// Returns false for a header that does not end soon: the reader of age has no limit for it, and reads it anew with each
/// line. There is room for two thousand recipients.
fn has_header(file: &File) -> io::Result<bool> {
    const MOST_BYTES: usize = 256 << 10;
    const LAST_LINE: &[u8] = b"\n--- ";
    let mut beginning = vec![0; MOST_BYTES];
    let mut len = 0;
    while len < MOST_BYTES {
        match file.read_at(&mut beginning[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(beginning[..len].windows(LAST_LINE.len()).any(|window| window == LAST_LINE))
}

fn not_read(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            let why = "its encrypted content is damaged, or cut short";
            Error::new(ErrorKind::Corrupt, DECRYPT).of_file(path).because(why)
        }
        _ => file_error(DECRYPT, path, error),
    }
}

/// A place in a file that others read too.
struct Cursor {
    file: Arc<File>,
    at: u64,
}

impl Read for Cursor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// An image in an encrypted file.
pub(crate) struct EncryptedImage {
    path: PathBuf,
    keys: Keys,
    file: Arc<File>,
    len_bytes: u64,
    /// Idle readers.
    readers: Mutex<Vec<Plaintext>>,
}

impl EncryptedImage {
    pub(crate) fn open(path: &Path, keys: &Keys) -> Result<Self> {
        let file = regular::open(path).map_err(|error| file_error(DECRYPT, path, error))?;
        let file = Arc::new(file);
        let mut reader = open(keys, path, Arc::clone(&file))?;
        // The end is authentic, so nothing is cut off.
        let len_bytes = reader.seek(SeekFrom::End(0)).map_err(|error| not_read(path, error))?;
        let readers = Mutex::new(vec![reader]);
        Ok(Self { path: path.to_owned(), keys: keys.clone(), file, len_bytes, readers })
    }
}

impl std::fmt::Debug for EncryptedImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncryptedImage").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ImageSource for EncryptedImage {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset_bytes: u64) -> Result<()> {
        let idle = || self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = idle().pop();
        let mut reader = match reader {
            Some(reader) => reader,
            None => open(&self.keys, &self.path, Arc::clone(&self.file))?,
        };
        let read = reader
            .seek(SeekFrom::Start(offset_bytes))
            .and_then(|_| reader.read_exact(buffer))
            .map_err(|error| not_read(&self.path, error));
        // One that failed is not used again.
        if read.is_ok() {
            idle().push(reader);
        }
        read
    }

    fn prefetch(&self, _: &[Range<u64>], _: Urgency) {}

    fn is_ready(&self, _: &Range<u64>) -> bool {
        true
    }

    fn subscribe(&self, _: Weak<OnArrival>) {}

    fn prefetch_bytes(&self) -> u64 {
        CHUNK_BYTES as u64
    }

    fn open_parent(&self, _: Option<&str>, _: ImageIdentity) -> Result<Arc<dyn ImageSource>> {
        let why = "it has a parent, which an encrypted image cannot have";
        Err(Error::new(ErrorKind::Corrupt, DECRYPT).of_file(&self.path).because(why))
    }

    fn read_working_set(&self) -> Option<Vec<u8>> {
        None
    }

    fn write_working_set(&self, _: &[u8]) -> Result<()> {
        let why = "a working set beside it would not be encrypted";
        Err(Error::new(ErrorKind::Unsupported, DECRYPT).of_file(&self.path).because(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_without_an_end_is_refused_before_it_is_read() {
        let path = std::env::temp_dir().join(format!("cowslip-header-{}", std::process::id()));
        let has = |beginning: &str, rest: u64| {
            std::fs::write(&path, beginning).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            file.set_len(beginning.len() as u64 + rest).unwrap();
            has_header(&file).unwrap()
        };
        let version = "age-encryption.org/v1\n";
        let found = [
            has(&format!("{version}-> X25519 a\nb\n--- c\n"), 1 << 40),
            has(version, 1 << 40),
            has(&format!("{version}{}--- c\n", "-> a\n".repeat(100_000)), 0),
            has("", 0),
        ];
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found, [true, false, false, false]);
    }
}
