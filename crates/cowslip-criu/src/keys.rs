//! The keys of encrypted checkpoints: X25519 recipients and identities of [age](https://age-encryption.org/v1).

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use age::x25519::{Identity, Recipient};
use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;

const OPERATION: &str = "read keys";

/// Keys to write a checkpoint with, and to read one.
#[derive(Clone, Default)]
pub struct Keys {
    /// A checkpoint is encrypted to all of these, and in plain if there is none.
    pub(crate) recipients: Vec<Recipient>,
    /// Any of these may open one.
    pub(crate) identities: Vec<Identity>,
}

impl Keys {
    /// Adds a recipient, `age1…`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it is none.
    pub fn add_recipient(&mut self, text: &str) -> Result<()> {
        let parsed = text.parse().map_err(|why| {
            let error = Error::new(ErrorKind::Usage, "read a recipient");
            error.because(format!("{text:?} is no X25519 recipient of age, age1…: {why}"))
        });
        self.recipients.push(parsed?);
        Ok(())
    }

    /// Adds the recipients in a file, one a line.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a line is none, or there is none; the file system's.
    pub fn add_recipients_file(&mut self, path: &Path) -> Result<()> {
        self.recipients.extend(read::<Recipient>(path, "recipient of age, age1…")?);
        Ok(())
    }

    /// Adds the identities in a file, as `age-keygen` writes it, for reading.
    ///
    /// # Errors
    /// Those of [`Self::add_recipients_file`].
    pub fn add_identities(&mut self, path: &Path) -> Result<()> {
        self.identities.extend(read::<Identity>(path, "identity of age, AGE-SECRET-KEY-1…")?);
        Ok(())
    }

    /// Adds the identities in a file, for reading and writing.
    ///
    /// # Errors
    /// Those of [`Self::add_identities`].
    pub fn add_key_file(&mut self, path: &Path) -> Result<()> {
        let before = self.identities.len();
        self.add_identities(path)?;
        self.recipients.extend(self.identities[before..].iter().map(Identity::to_public));
        Ok(())
    }

    /// Returns true if checkpoints are encrypted with these.
    pub(crate) fn encrypt(&self) -> bool {
        !self.recipients.is_empty()
    }
}

/// Leaves the identities out, which are secret.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("recipients", &self.recipients.len()).finish_non_exhaustive()
    }
}

/// The keys in a file, one a line; lines that begin with `#` are comments. A line is not repeated in an error: it may be
/// secret.
fn read<K: FromStr<Err = &'static str>>(path: &Path, kind: &str) -> Result<Vec<K>> {
    let text = regular::read_text(path).map_err(|error| file_error(OPERATION, path, error))?;
    let refused = |why: String| Error::new(ErrorKind::Usage, OPERATION).of_file(path).because(why);
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let keys = lines.map(|(number, line)| {
        line.parse().map_err(|_| refused(format!("line {number} is no X25519 {kind}")))
    });
    let keys = keys.collect::<Result<Vec<_>>>()?;
    match keys.is_empty() {
        true => Err(refused(format!("it has no X25519 {kind}"))),
        false => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_with_its_comments_and_never_repeated() {
        let path = std::env::temp_dir().join(format!("cowslip-keys-{}", std::process::id()));
        let mut keys = Keys::default();
        let refusal = |keys: &mut Keys, text: &str| {
            std::fs::write(&path, text).unwrap();
            let refused = keys.add_key_file(&path).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Usage);
            refused.to_string()
        };
        assert!(refusal(&mut keys, "# created: today\n\n").contains("has no"));
        let refused = refusal(&mut keys, "# a key\nAGE-SECRET-KEY-1WRONG\n");
        assert!(refused.contains("line 2") && !refused.contains("WRONG"), "{refused}");
        assert!(!keys.encrypt());

        use age::secrecy::ExposeSecret;
        let identity = Identity::generate();
        let text = format!("# public key\n  {}\r\n", identity.to_string().expose_secret());
        std::fs::write(&path, text).unwrap();
        keys.add_key_file(&path).unwrap();
        assert_eq!(keys.recipients, [identity.to_public()]);
        assert!(!format!("{keys:?}").contains("SECRET"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(keys.add_recipient("age1wrong").unwrap_err().kind(), ErrorKind::Usage);
        keys.add_recipient(&identity.to_public().to_string()).unwrap();
    }
}
