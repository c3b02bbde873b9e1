//! A trace file of any bytes is refused, or read up to its last whole block and summed up.
#![no_main]

use cowslip_trace::file::Reader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(mut reader) = Reader::new(input) else { return };
    let mut events = Vec::new();
    while let Ok(true) = reader.read_block(&mut events) {
        events.iter().for_each(|event| _ = reader.frames_of(event));
        events.clear();
    }
    let _ = reader.totals();
});
