//! The one message of a client: the places of its memory, as JSON, and its userfaultfd.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cowslip::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::uffd::Uffd;
use cowslip_sys::{process, socket};
use serde::Deserialize;

const OPERATION: &str = "receive the memory of a machine";
/// Time for the whole message.
const PATIENCE: Duration = Duration::from_secs(5);
/// A region takes some 150 bytes.
const MOST_BYTES: usize = 64 << 10;
const MOST_REGIONS: usize = 256;
/// The end of a process' addresses.
const END: u64 = 1 << 56;

/// A region, in the client's words. Other fields are not looked at.
#[derive(Deserialize, Clone, Copy, Debug)]
struct Told {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    page_size: Option<u64>,
    /// Bytes in spite of its name, and the only one of earlier releases.
    page_size_kib: Option<u64>,
}

/// A region of a machine's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    /// Its place in the process of the machine.
    pub(super) host: VirtRange,
    /// Its place in the content.
    pub(super) offset: u64,
    pub(super) page_bytes: usize,
}

fn refused(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, OPERATION).because(why.into())
}

/// Receives the message. The content has so many bytes. `None` if the client only connected, as one does that looks for
/// a handler.
pub(super) fn receive(
    stream: &UnixStream,
    content_bytes: u64,
) -> Result<Option<(Vec<Mapping>, Uffd)>> {
    let deadline = Instant::now() + PATIENCE;
    let failed = |errno| Error::from_errno(OPERATION, errno);
    let (mut said, mut descriptors) = (Vec::new(), Vec::<OwnedFd>::new());
    let told = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = process::wait_many_readable(&[stream.as_fd()], Some(left)).map_err(failed)?;
        if left.is_zero() {
            return Err(refused(format!("its message is not complete after {PATIENCE:?}")));
        }
        if !ready[0] {
            continue;
        }
        let mut buffer = [0; 4096];
        let (read, came) = socket::receive(stream.as_fd(), &mut buffer).map_err(failed)?;
        said.extend(&buffer[..read]);
        descriptors.extend(came);
        if descriptors.len() > 1 {
            return Err(refused("it sent several descriptors"));
        }
        match serde_json::from_slice::<Vec<Told>>(&said) {
            Ok(told) => break told,
            Err(_) if read == 0 && said.is_empty() => return Ok(None),
            Err(_) if read == 0 => return Err(refused("its message ends early")),
            Err(error) if !error.is_eof() => {
                return Err(refused(format!("its message is no array of regions: {error}")));
            }
            Err(_) if said.len() > MOST_BYTES => return Err(refused("its message is too long")),
            Err(_) => {}
        }
    };
    let mappings = checked(&told, content_bytes).map_err(refused)?;
    let uffd = descriptors.pop().and_then(Uffd::received);
    let uffd = uffd.ok_or_else(|| refused("it sent no userfaultfd that does not block"))?;
    Ok(Some((mappings, uffd)))
}

/// The regions in the order of their addresses, if they make sense.
fn checked(told: &[Told], content_bytes: u64) -> Result<Vec<Mapping>, String> {
    if told.is_empty() || told.len() > MOST_REGIONS {
        return Err(format!("it has {} regions, not 1 to {MOST_REGIONS}", told.len()));
    }
    let mut mappings =
        told.iter().map(|region| mapping(region, content_bytes)).collect::<Result<Vec<_>, _>>()?;
    mappings.sort_by_key(|mapping| mapping.host.start);
    if mappings.windows(2).any(|pair| pair[0].host.end() > pair[1].host.start) {
        return Err("its regions overlap".to_owned());
    }
    let all: u64 = mappings.iter().map(|mapping| mapping.host.len as u64).sum();
    if all > content_bytes {
        return Err(format!("its regions have {all:#x} bytes, the image {content_bytes:#x}"));
    }
    Ok(mappings)
}

fn mapping(told: &Told, content_bytes: u64) -> Result<Mapping, String> {
    let base = page_size_bytes() as u64;
    let page = match told.page_size.or(told.page_size_kib) {
        // Less than a page cannot be bytes.
        Some(kib @ 1..1024) => kib << 10,
        Some(2048) => 2 << 20,
        Some(bytes) => bytes,
        None => base,
    };
    if page != base && page != CHUNK_BYTES as u64 {
        return Err(format!("pages of {page:#x} bytes are not known"));
    }
    let Told { base_host_virt_addr: start, size, offset, .. } = *told;
    let is_whole = size > 0 && [start, size].iter().all(|part| part.is_multiple_of(page));
    let ends = (start.checked_add(size), offset.checked_add(size));
    let is_inside = ends.0.is_some_and(|end| start > 0 && end <= END)
        && ends.1.is_some_and(|end| end <= content_bytes);
    if !is_whole || !is_inside || !offset.is_multiple_of(base) {
        return Err(format!(
            "a region of {size:#x} bytes at {start:#x}, with content from {offset:#x}, is no part of the image of \
             {content_bytes:#x} bytes in whole pages"
        ));
    }
    let host = VirtRange::new(start as usize, size as usize);
    Ok(Mapping { host, offset, page_bytes: page as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: u64 = 64 << 20;

    fn parsed(text: &str) -> Result<Vec<Mapping>, String> {
        let told: Vec<Told> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        checked(&told, CONTENT)
    }

    fn region(start: u64, size: u64, offset: u64, page: &str) -> String {
        format!(
            r#"{{"base_host_virt_addr":{start},"size":{size},"offset":{offset},{page},"more":[1]}}"#
        )
    }

    #[test]
    fn page_sizes_have_several_names_and_units() {
        let pages = [
            (r#""page_size":4096,"page_size_kib":4096"#, 4096),
            (r#""page_size_kib":4096"#, 4096),
            (r#""page_size_kib":4"#, 4096),
            (r#""page_size_kib":2048"#, 2 << 20),
            (r#""page_size":2097152"#, 2 << 20),
            (r#""none":0"#, 4096),
        ];
        for (page, wanted) in pages {
            let text = format!("[{}]", region(1 << 30, 4 << 20, 0, page));
            assert_eq!(parsed(&text).unwrap()[0].page_bytes, wanted, "{page}");
        }
    }

    #[test]
    fn regions_that_make_no_sense_are_refused() {
        let page = r#""page_size":4096"#;
        let one = |start, size, offset| format!("[{}]", region(start, size, offset, page));
        assert!(parsed(&one(1 << 30, CONTENT, 0)).is_ok());
        let two = |start| {
            let first = region(1 << 30, CONTENT / 2, 0, page);
            format!("[{first},{}]", region(start, CONTENT / 2, CONTENT / 2, page))
        };
        assert!(parsed(&two((1 << 30) + CONTENT / 2)).is_ok());
        let wrong = [
            "[]".to_owned(),
            "{}".to_owned(),
            one(0, 4096, 0),
            one(1 << 30, 0, 0),
            one(1 << 30, 4097, 0),
            one((1 << 30) + 1, 4096, 0),
            one(1 << 30, 4096, 1),
            one(1 << 30, CONTENT + 4096, 0),
            one(1 << 30, CONTENT, 4096),
            one(1 << 30, 4096, u64::MAX - 4095),
            one(u64::MAX - 4095, 4096, 0),
            two((1 << 30) + 4096),
            format!("[{}]", region(1 << 30, 4096, 0, r#""page_size":8192"#)),
            format!("[{}]", region(1 << 30, 4096, 0, r#""page_size":2097152"#)),
            format!("[{}]", vec![region(1 << 30, 4096, 0, page); 257].join(",")),
        ];
        for text in wrong {
            assert!(parsed(&text).is_err(), "{text}");
        }
    }
}
