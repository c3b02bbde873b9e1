//! A dump's inventory, `inventory.img`: it says how pages are compressed.

use std::io;
use std::path::Path;

use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;

use crate::dump::{OPERATION, file_of, messages};
use crate::wire::Message;

pub(crate) const NAME: &str = "inventory.img";
/// Unlike other files of a dump it does not begin with the magic number that they share.
const MAGICS: &[u32] = &[0x5831_3116];
const VERSION: u32 = 1;
const COMPRESSION: u32 = 15;
const BLOCK_BYTES: u32 = 16;
/// The version of dumps that are not compressed and need no earlier one.
const PLAIN_VERSION: u64 = 2;
const LZ4: u64 = 1;

/// The inventory that the dump would have without compression; `None` if it is not compressed.
pub(crate) fn without_compression(folder: &Path) -> Result<Option<Vec<u8>>> {
    let path = folder.join(NAME);
    let bytes = match regular::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| file_error(OPERATION, &path, error))?,
    };
    let corrupt = |why| Error::new(ErrorKind::Corrupt, OPERATION).of_file(&path).because(why);
    let messages = messages(&bytes, MAGICS).map_err(corrupt)?;
    let [message] = messages[..] else {
        return Err(corrupt("it is not one message".into()));
    };
    let mut edited = Message::decode(message).map_err(corrupt)?;
    match edited.number(COMPRESSION) {
        0 => Ok(None),
        LZ4 => {
            edited.set(VERSION, PLAIN_VERSION);
            edited.remove(COMPRESSION);
            edited.remove(BLOCK_BYTES);
            Ok(Some(file_of(MAGICS, [edited.encode()])))
        }
        other => {
            let why = format!("its pages are compressed in a way that is not known, {other}");
            Err(corrupt(why).advise("decompress the dump with `crit decompress`"))
        }
    }
}
