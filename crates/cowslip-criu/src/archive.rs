//! All of a checkpoint but its memory, in one message of Protocol Buffers: for an encrypted one, as names and lengths of CRIU's
//! files tell of the process too, and for one in a store, which would have an object for each.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;
use prost::Message;

use crate::encrypted;
use crate::import::private_folder;
use crate::keys::Keys;

/// CRIU itself restores memory that is shared, of which a checkpoint has 64 MiB at most, and locked and hugetlb memory.
const MOST_BYTES: u64 = 1 << 30;
const OPERATION: &str = "read a checkpoint";

/// The process and CRIU's files.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Archive {
    /// The content of `process.json`.
    #[prost(string, required, tag = "1")]
    pub(crate) process: String,
    #[prost(message, repeated, tag = "2")]
    files: Vec<Entry>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Entry {
    #[prost(string, required, tag = "1")]
    name: String,
    #[prost(bytes = "vec", required, tag = "2")]
    content: Vec<u8>,
}

impl Archive {
    /// Reads the files of a folder.
    pub(crate) fn pack(process: String, folder: &Path) -> Result<Self> {
        let failed = |error| file_error("read the rest of a dump", folder, error);
        let mut files = Vec::new();
        for file in fs::read_dir(folder).map_err(failed)? {
            let file = file.map_err(failed)?;
            let name = file.file_name().into_string();
            let name = name.map_err(|_| failed(io::ErrorKind::InvalidFilename.into()))?;
            files.push(Entry { name, content: fs::read(file.path()).map_err(failed)? });
        }
        Ok(Self { process, files })
    }

    pub(crate) fn encrypt(&self, keys: &Keys, path: &Path) -> Result<()> {
        encrypted::encrypt(keys, &mut &self.to_bytes()?[..], path).map(drop)
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let bytes = self.to_bytes()?;
        fs::write(path, bytes).map_err(|error| file_error("write a checkpoint", path, error))
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        if self.encoded_len() as u64 > MOST_BYTES {
            let why = "it has more than 1 GiB besides the memory that CRIU leaves to others";
            return Err(Error::new(ErrorKind::Unsupported, "write a checkpoint").because(why));
        }
        Ok(self.encode_to_vec())
    }

    pub(crate) fn decrypt(keys: &Keys, path: &Path) -> Result<Self> {
        let bytes = encrypted::decrypt(keys, path, MOST_BYTES + MOST_BYTES / 64)?;
        Self::from_bytes(path, &bytes)
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let failed = |error| file_error(OPERATION, path, error);
        let file = regular::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(corrupt(path, "it is longer than 1 GiB"));
        }
        Self::from_bytes(path, &bytes)
    }

    fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        Self::decode(bytes).map_err(|_| corrupt(path, "it holds no files"))
    }

    /// Writes the files into a new folder. `path` is the archive's, for errors.
    pub(crate) fn unpack(&self, path: &Path, folder: &Path) -> Result<()> {
        let failed = |error| file_error("unpack a checkpoint", folder, error);
        private_folder(folder).map_err(failed)?;
        for file in &self.files {
            // A name must not lead out of the folder.
            if Path::new(&file.name).file_name() != Some(OsStr::new(&file.name)) {
                return Err(corrupt(path, "a file in it has no name for a folder"));
            }
            let mut options = fs::OpenOptions::new();
            let created = options.write(true).create_new(true).open(folder.join(&file.name));
            match created {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(corrupt(path, "two files in it have one name"));
                }
                created => created
                    .and_then(|mut there| io::Write::write_all(&mut there, &file.content))
                    .map_err(failed)?,
            }
        }
        Ok(())
    }
}

fn corrupt(path: &Path, why: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, OPERATION).of_file(path).because(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_leaves_the_folder() {
        let place = std::env::temp_dir().join(format!("cowslip-archive-{}", std::process::id()));
        private_folder(&place).unwrap();
        let unpacked = |names: &[&str]| {
            let entry =
                |name: &&str| Entry { name: (*name).into(), content: name.as_bytes().into() };
            let archive =
                Archive { process: String::new(), files: names.iter().map(entry).collect() };
            let folder = place.join("files");
            let unpacked = archive.unpack(Path::new("state.age"), &folder);
            let again = unpacked.is_ok().then(|| Archive::pack(String::new(), &folder).unwrap());
            fs::remove_dir_all(&folder).unwrap();
            unpacked.map(|()| {
                let mut again = again.unwrap();
                again.files.sort_by(|one, other| one.name.cmp(&other.name));
                assert_eq!(again, archive);
            })
        };
        unpacked(&["core-4.img", "files.img"]).unwrap();
        for names in [
            &["../out"][..],
            &["/tmp/out"],
            &["a/b"],
            &[".."],
            &["."],
            &[""],
            &["one/"],
            &["a\0b"],
            &["one", "one"],
        ] {
            let refused = unpacked(names).unwrap_err();
            assert_ne!(refused.kind(), ErrorKind::Denied, "{names:?}");
        }
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        fs::remove_dir_all(&place).unwrap();
    }
}
