//! A file as a layer: a tar with this file only.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use cowslip::image::{Image, OnProgress, Progress};
use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::atomic_file::DurableFile;
use sha2::{Digest, Sha256};
use tar::Header;

use super::{PULL, PUSH};

const BLOCK_BYTES: u64 = 512;
/// Bytes of a file that are read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// An image's file on its way into a registry. The same file always makes the same bytes.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) name: String,
    file: PathBuf,
    file_bytes: u64,
    header: Header,
}

impl Layer {
    pub(super) fn of(image: &Image) -> Result<Self> {
        let file = image.path().to_owned();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file_bytes = image.summary().file_bytes;
        let mut header = Header::new_gnu();
        header.set_path(&name).map_err(|_| {
            let why = "its name is too long for a layer, or no text: 100 bytes at most";
            Error::new(ErrorKind::Usage, PUSH).of_file(&file).because(why)
        })?;
        header.set_size(file_bytes);
        // Makes it readable for containers of any user.
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        Ok(Self { name, file, file_bytes, header })
    }

    pub(super) fn len_bytes(&self) -> u64 {
        BLOCK_BYTES + self.file_bytes + self.padding_bytes()
    }

    /// Fills the last block, and adds the two blocks that end the tar.
    fn padding_bytes(&self) -> u64 {
        self.file_bytes.next_multiple_of(BLOCK_BYTES) - self.file_bytes + 2 * BLOCK_BYTES
    }

    /// All of it, piece by piece.
    pub(super) fn pieces(&self) -> Result<Pieces> {
        let file = File::open(&self.file).map_err(|error| self.failed(&error))?;
        let header = io::Cursor::new(self.header.as_bytes().to_vec());
        let padding = io::repeat(0).take(self.padding_bytes());
        Ok(Pieces(Box::new(header.chain(file.take(self.file_bytes)).chain(padding))))
    }

    /// Its name in a registry.
    pub(super) fn digest(&self, progress: OnProgress<'_>) -> Result<String> {
        let (mut hash, mut done_bytes) = (Sha256::new(), 0);
        let mut pieces = self.pieces()?;
        while let Some(piece) = pieces.next().map_err(|error| self.failed(&error))? {
            hash.update(&piece);
            done_bytes += piece.len() as u64;
            proceed(PUSH, progress, done_bytes, self.len_bytes())?;
        }
        Ok(named(&hash.finalize()))
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::from_io(PUSH, error).of_file(&self.file)
    }
}

/// The digest of a few bytes.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    named(&Sha256::digest(bytes))
}

fn named(digest: &[u8]) -> String {
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Reports the progress, and fails if the work was broken off.
pub(super) fn proceed(
    operation: &'static str,
    progress: OnProgress<'_>,
    done_bytes: u64,
    total_bytes: u64,
) -> Result<()> {
    match progress(Progress { done_bytes, total_bytes }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => {
            Err(Error::new(ErrorKind::Busy, operation).because("it was broken off"))
        }
    }
}

pub(super) struct Pieces(Box<dyn Read + Send>);

impl Pieces {
    pub(super) fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        (&mut self.0).take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
        Ok((!piece.is_empty()).then(|| piece.into()))
    }
}

/// Writes the one file of a layer to `place`, whole or not at all. `layer` fails at its end if its digest is wrong.
pub(super) fn unpack(layer: impl Read, place: &Path, progress: OnProgress<'_>) -> Result<u64> {
    let failed = |error: io::Error| Error::from_io(PULL, &error).of_file(place);
    let mut archive = tar::Archive::new(layer);
    // A name of any length before the file would be read into memory.
    let entry = archive.entries().map_err(failed)?.raw(true).next().transpose().map_err(failed)?;
    let is_file = |entry: &tar::Entry<'_, _>| entry.header().entry_type().is_file();
    let mut entry = entry.filter(is_file).ok_or_else(|| {
        let why = "its layer does not begin with a file";
        Error::new(ErrorKind::Corrupt, PULL).of_file(place).because(why)
    })?;
    let total_bytes = entry.size();
    let file = DurableFile::create(place).map_err(failed)?;
    let (mut piece, mut done_bytes) = (vec![0; PIECE_BYTES], 0);
    while done_bytes < total_bytes {
        let wanted = PIECE_BYTES.min((total_bytes - done_bytes) as usize);
        entry.read_exact(&mut piece[..wanted]).map_err(failed)?;
        let is_last = done_bytes + wanted as u64 == total_bytes;
        // Holes stay holes; the end gives the file its length.
        if is_last || piece[..wanted].iter().any(|byte| *byte != 0) {
            file.write_at(&piece[..wanted], done_bytes).map_err(failed)?;
        }
        done_bytes += wanted as u64;
        proceed(PULL, &mut *progress, done_bytes, total_bytes)?;
    }
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(failed)?;
    file.commit().map_err(failed)?;
    Ok(total_bytes)
}

#[cfg(test)]
mod tests {
    use tar::EntryType;

    use super::*;

    /// A layer is a file of any length, of which no more than a piece is in memory.
    #[test]
    fn a_layer_that_begins_with_a_long_name_is_refused_unread() {
        for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(u64::MAX >> 8);
            header.set_cksum();
            let mut read_bytes = 0;
            let endless = |buffer: &mut [u8]| {
                read_bytes += buffer.len();
                assert!(read_bytes < 1 << 20, "{kind:?} is read");
                buffer.fill(b'x');
                buffer.len()
            };
            let layer = (&header.as_bytes()[..]).chain(Endless(endless));
            let place = std::env::temp_dir().join("cowslip-no-layer");
            let error = unpack(layer, &place, &mut |_| ControlFlow::Continue(())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }

    struct Endless<F>(F);

    impl<F: FnMut(&mut [u8]) -> usize> Read for Endless<F> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            Ok((self.0)(buffer))
        }
    }
}
