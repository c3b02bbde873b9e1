//! The process of a checkpoint, and the names of the files in its folder.
//!
//! ```text
//!  in plain    process.json · memory.image · criu/
//!  encrypted   process.json, of which it is · memory.image.age · state.age: the other process.json, and criu/
//! ```

use std::io::Read;
use std::path::Path;

use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;
use serde::{Deserialize, Serialize};

/// Longer files are no checkpoint's.
const MOST_BYTES: u64 = 1 << 20;
const OPERATION: &str = "read a checkpoint";
const SCHEMA: &str = "cowslip.process/1";
const ENCRYPTION: &str = "age";
pub(crate) const ABOUT: &str = "process.json";
pub(crate) const MEMORY: &str = "memory.image";
pub(crate) const REST: &str = "criu";
pub(crate) const ENCRYPTED_MEMORY: &str = "memory.image.age";
pub(crate) const ENCRYPTED_STATE: &str = "state.age";

/// A process in a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct About {
    /// The number that it has again when it is restored.
    pub pid: i32,
    /// Those of its threads.
    pub threads: Vec<i32>,
    /// The name of its program.
    pub name: String,
    /// The time for which it was stopped.
    pub pause_ns: u64,
    /// The version of CRIU that wrote the rest.
    pub criu: String,
}

/// The file's content. Of an encrypted checkpoint it has the first two alone.
#[derive(Serialize, Deserialize)]
struct Content {
    schema: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<String>,
    #[serde(flatten)]
    about: Option<About>,
}

impl Content {
    fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and texts") + "\n"
    }
}

/// The content of the file for an encrypted checkpoint.
pub(crate) fn text_of_encrypted() -> String {
    let (schema, encryption) = (SCHEMA.into(), Some(ENCRYPTION.into()));
    Content { schema, encryption, about: None }.to_text()
}

/// Reads the file in a checkpoint's folder; `None` if the checkpoint is encrypted.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the folder is no checkpoint, or one of a later version.
pub(crate) fn read(folder: &Path) -> Result<Option<About>> {
    let path = folder.join(ABOUT);
    let mut bytes = Vec::new();
    regular::open(&path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| file_error(OPERATION, &path, error))?;
    let corrupt = |why| Error::new(ErrorKind::Corrupt, OPERATION).of_file(&path).because(why);
    if bytes.len() as u64 > MOST_BYTES {
        return Err(corrupt("it is longer than 1 MiB".into()));
    }
    let content = decode(&bytes).map_err(corrupt)?;
    match content.encryption.as_deref() {
        Some(ENCRYPTION) => Ok(None),
        Some(other) => Err(corrupt(format!("its encryption is {other:?}, not {ENCRYPTION:?}"))),
        None => content.about().map(Some).map_err(corrupt),
    }
}

fn decode(bytes: &[u8]) -> std::result::Result<Content, String> {
    let content: Content = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match content.schema == SCHEMA {
        true => Ok(content),
        false => Err(format!("its schema is {:?}, not {SCHEMA:?}", content.schema)),
    }
}

impl Content {
    fn about(self) -> std::result::Result<About, String> {
        let about = self.about.ok_or("it says nothing of a process")?;
        // A restore looks at these numbers, and may end the process.
        if about.threads.first() != Some(&about.pid) || about.threads.iter().any(|id| *id < 2) {
            return Err("its numbers are not those of a process".into());
        }
        Ok(about)
    }
}

impl About {
    /// The content of the file.
    pub(crate) fn to_text(&self) -> String {
        let (schema, about) = (SCHEMA.into(), Some(self.clone()));
        Content { schema, encryption: None, about }.to_text()
    }

    /// Reads [`Self::to_text`]; fails with the reason.
    pub(crate) fn from_text(text: &str) -> std::result::Result<Self, String> {
        decode(text.as_bytes())?.about()
    }
}
