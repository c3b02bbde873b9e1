//! A file with a slow server: a read of it pins the reader's pages until the answer (FUSE with `direct_io`).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::null;
use std::sync::Arc;
use std::time::Duration;

use crate::words::{self, PAGE};

/// The file, beside the folders of programs.
pub(crate) const FILE: &str = "late/file";
const PAGES: usize = 1 << 15;
const SERVERS: usize = 3;
const LATE: Duration = Duration::from_millis(4);

const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
const FILE_NODE: u64 = 2;
const FOPEN_DIRECT_IO: u32 = 1;
/// Seconds that the kernel may remember an answer.
const VALID: u64 = 3600;

/// The mounted file system, in a namespace of this process, unmounted when this is dropped.
pub(crate) struct Late(PathBuf);

impl Late {
    /// Must be called while there is one thread.
    pub(crate) fn mount(folder: &Path) -> io::Result<Self> {
        let place = folder.join(FILE).parent().expect("a folder in a folder").to_owned();
        std::fs::create_dir_all(&place)?;
        let fuse = File::options().read(true).write(true).open("/dev/fuse")?;
        let path = CString::new(place.to_str().expect("the driver named it"))?;
        let fd = fuse.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
        let options = CString::new(options)?;
        // SAFETY: all strings end with a zero, and all other pointers are null.
        unsafe {
            let private = libc::MS_REC | libc::MS_PRIVATE;
            answer(libc::unshare(libc::CLONE_NEWNS))?;
            answer(libc::mount(null(), c"/".as_ptr(), null(), private, null()))?;
            let kind = c"fuse.late".as_ptr();
            let options = options.as_ptr().cast();
            answer(libc::mount(c"late".as_ptr(), path.as_ptr(), kind, 0, options))?;
        }
        let fuse = Arc::new(fuse);
        for _ in 0..SERVERS {
            let fuse = Arc::clone(&fuse);
            std::thread::spawn(move || serve(&fuse));
        }
        Ok(Self(place))
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        let path = CString::new(self.0.to_str().expect("the driver named it"));
        let path = path.expect("a path has no zero");
        // SAFETY: the string ends with a zero.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn answer(returned: libc::c_int) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Answers until it is unmounted.
fn serve(fuse: &File) {
    let mut request = vec![0; 256 << 10];
    loop {
        let got = match { fuse }.read(&mut request) {
            Ok(got) => got,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT)) => {
                continue;
            }
            Err(_) => return,
        };
        let request = &request[..got];
        let (opcode, unique) = (int(request, 4), long(request, 8));
        if let Some(body) = respond(opcode, long(request, 16), &request[IN_HEADER..]) {
            let (error, body) = body.map_or_else(|errno| (-errno, Vec::new()), |body| (0, body));
            let mut message = ((OUT_HEADER + body.len()) as u32).to_ne_bytes().to_vec();
            message.extend(error.to_ne_bytes());
            message.extend(unique.to_ne_bytes());
            message.extend(body);
            // The requesting process may be gone.
            let _ = { fuse }.write_all(&message);
        }
    }
}

fn int(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Operation codes of `linux/fuse.h`.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// The body of an answer, if one is expected.
fn respond(opcode: u32, node: u64, body: &[u8]) -> Option<Result<Vec<u8>, i32>> {
    Some(Ok(match opcode {
        INIT => {
            let [version, minor, readahead] = [7, int(body, 4), int(body, 8)];
            // No flags, the usual limits of requests at once, writes of 64 KiB, times of a nanosecond.
            let words = [version, minor, readahead, 0, 0, 65536, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            words.into_iter().flat_map(u32::to_ne_bytes).collect()
        }
        LOOKUP => {
            let known = [FILE_NODE, 0, VALID, VALID, 0];
            [known.into_iter().flat_map(u64::to_ne_bytes).collect(), attributes(FILE_NODE)].concat()
        }
        GETATTR => {
            [VALID, 0].into_iter().flat_map(u64::to_ne_bytes).chain(attributes(node)).collect()
        }
        OPEN => [0, 0, FOPEN_DIRECT_IO, 0].into_iter().flat_map(u32::to_ne_bytes).collect(),
        READ => {
            std::thread::sleep(LATE);
            content(long(body, 8) as usize, int(body, 16) as usize)
        }
        RELEASE => Vec::new(),
        FORGET | BATCH_FORGET | INTERRUPT => return None,
        _ => return Some(Err(libc::ENOSYS)),
    }))
}

/// `struct fuse_attr`
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = match node {
        FILE_NODE => (libc::S_IFREG | 0o644, PAGES * PAGE),
        _ => (libc::S_IFDIR | 0o755, 0),
    };
    let longs = [node, size as u64, (size / 512) as u64, 0, 0, 0];
    let ints = [0, 0, 0, mode, 1, 0, 0, 0, PAGE as u32, 0];
    let longs = longs.into_iter().flat_map(u64::to_ne_bytes);
    longs.chain(ints.into_iter().flat_map(u32::to_ne_bytes)).collect()
}

fn content(offset: usize, len: usize) -> Vec<u8> {
    let words = (offset / 8..(offset + len).min(PAGES * PAGE) / 8).map(|word| {
        let (page, index) = (word / (PAGE / 8), word % (PAGE / 8));
        words::late_seed(page) + index as u64
    });
    words.flat_map(u64::to_ne_bytes).collect()
}
