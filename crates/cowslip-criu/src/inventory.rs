//! A dump's inventory, `inventory.img`: it says how pages are compressed.

use std::io;
use std::path::Path;

use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;
use prost::DecodeError;
use prost::encoding::{DecodeContext, decode_key, decode_varint, skip_field};

use crate::dump::{OPERATION, file_of, messages};

pub(crate) const NAME: &str = "inventory.img";
/// Unlike other files of a dump it does not begin with the magic number that they share.
const MAGICS: &[u32] = &[0x5831_3116];
const VERSION: u32 = 1;
const COMPRESSION: u32 = 15;
const BLOCK_BYTES: u32 = 16;
/// The version of dumps that are not compressed and need no earlier one.
const PLAIN_VERSION: u8 = 2;
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
    let (compression, rest) =
        split(message).map_err(|_| corrupt("it is no inventory of CRIU".into()))?;
    match compression {
        0 => Ok(None),
        LZ4 => Ok(Some(file_of(MAGICS, [rest]))),
        other => {
            let why = format!("its pages are compressed in a way that is not known, {other}");
            Err(corrupt(why).advise("decompress the dump with `crit decompress`"))
        }
    }
}

/// The compression of an inventory, and its fields without it.
fn split(mut message: &[u8]) -> std::result::Result<(u64, Vec<u8>), DecodeError> {
    let (mut compression, mut rest) = (0, Vec::new());
    while !message.is_empty() {
        let start = message;
        let (field, wire_type) = decode_key(&mut message)?;
        let mut value = message;
        skip_field(wire_type, field, &mut message, DecodeContext::default())?;
        match field {
            VERSION => rest.extend([(VERSION << 3) as u8, PLAIN_VERSION]),
            COMPRESSION => compression = decode_varint(&mut value)?,
            BLOCK_BYTES => {}
            _ => rest.extend(&start[..start.len() - message.len()]),
        }
    }
    Ok((compression, rest))
}
