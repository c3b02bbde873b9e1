//! The page cache of a file.

mod support;

use std::fs::File;
use std::io::Read;

use cowslip_sys::{AsFd, Errno, cache};
use support::skip;

#[test]
fn a_file_is_cached_by_reading_and_no_longer_when_it_is_dropped() {
    const BYTES: usize = 4 << 20;
    let path = std::env::temp_dir().join(format!("cowslip-cache-{}", std::process::id()));
    std::fs::write(&path, vec![7; BYTES]).unwrap();
    let mut file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    match cache::cached_bytes(file.as_fd()) {
        Ok(cached) => assert_eq!(cached, BYTES as u64, "just written"),
        Err(errno) => {
            assert_eq!(errno, Errno::NOSYS);
            return skip("cachestat", "this kernel has no cachestat(2)");
        }
    }
    cache::drop_cached(file.as_fd()).unwrap();
    let dropped = cache::cached_bytes(file.as_fd()).unwrap();
    if dropped == BYTES as u64 {
        return skip("page-cache", "the temporary directory has no disk behind it");
    }
    assert_eq!(dropped, 0);
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    assert!(content == vec![7; BYTES], "nothing is lost");
    assert_eq!(cache::cached_bytes(file.as_fd()).unwrap(), BYTES as u64);
}
