//! What claims to be of perf (`perf.data`, the text of `perf script`) is refused, or becomes a trace that can be read.
#![no_main]

use std::io::Write;

use cowslip_trace::file::Reader;
use cowslip_trace::import;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(input).expect("a file of some bytes");
    let mut trace = Vec::new();
    if import::import(file.path(), &mut trace, &mut |_, _| {}).is_ok() {
        let mut reader = Reader::new(&trace[..]).expect("what was imported is a trace");
        while reader.read_block(&mut Vec::new()).expect("a trace that is whole") {}
    }
});
