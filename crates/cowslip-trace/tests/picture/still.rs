//! The still pictures, and the library in the page.

use std::process::Command;

use cowslip_sys::units::VirtRange;
use cowslip_trace::model::{Event, EventKind, Fault, Map, Trace};
use cowslip_trace::picture::{Picture, Theme};

const COLOUR_OF_FIRST_TOUCH: [&str; 2] = ["#0072b2", "#4fa9ec"];

/// Four faults: at the corners of one mapping, at the beginning and the end of the trace.
fn corners() -> Trace {
    let map = Map { range: VirtRange::new(0x20_0000, 0x20_0000), flags: 0x22, ..Map::default() };
    let faults = [(0, 0x20_0000), (0, 0x3f_ffff), (1_000_000, 0x20_1000), (1_000_000, 0x3f_efff)];
    let fault = |(time_ns, address)| (time_ns, EventKind::Fault(Fault::at(address, 0x40_0000)));
    let whats = [(0, EventKind::Map(map))].into_iter().chain(faults.map(fault));
    let events = whats.map(|(time_ns, what)| Event { time_ns, pid: 1, tid: 1, what }).collect();
    Trace { events, ..Trace::default() }
}

#[test]
fn faults_are_where_time_and_address_say() {
    let trace = corners();
    for (theme, colour) in [Theme::Light, Theme::Dark].into_iter().zip(COLOUR_OF_FIRST_TOUCH) {
        let svg = Picture::new(&trace, None).svg(theme);
        // The plot is 1052 wide and 536 high at (132, 184); cells are 2.
        let cells =
            ["M132 184h2v2h-2z", "M132 718h2v2h-2z", "M1182 184h2v2h-2z", "M1182 718h2v2h-2z"];
        let (faults, _) =
            svg.rsplit_once(&format!("' fill='{colour}' fill-opacity='1.00'/>")).unwrap();
        let (_, faults) = faults.rsplit_once("<path d='").unwrap();
        for cell in cells {
            assert!(faults.contains(cell), "{cell} in {faults}");
        }
        assert!(svg.contains("first touch 4") && svg.contains("0x200000"), "{svg}");
    }
}

#[test]
fn the_library_is_the_one_that_its_sums_name() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/vendor/uplot");
    let mut check = Command::new("sha256sum");
    let checked =
        check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(folder).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    for file in ["uPlot.iife.min.js: OK\n", "uPlot.min.css: OK\n"] {
        assert!(String::from_utf8_lossy(&checked.stdout).contains(file), "{checked:?}");
    }
}
