//! The page in a real browser, driven by the actions of its user. The oracle counts in Rust, over the trace's
//! own events.

use std::time::Instant;

use cowslip_sys::units::VirtRange;
use cowslip_trace::model::{Event, EventKind, Fault, Header, Map, StackId, Trace};
use cowslip_trace::picture::Picture;
use serde_json::json;

use super::Folder;
use super::browser::Browser;
use super::story::{LIBC, LIBC_OFFSET, MIB, PID, POOL, POOL_BYTES, Story};

const SHIFT: u32 = 8;

/// The faults, with their times on the page: nanoseconds since the first event.
fn faults(trace: &Trace) -> Vec<(f64, &Event, &Fault)> {
    let origin_ns = trace.events[0].time_ns;
    let faults = trace.events.iter().filter_map(|event| match &event.what {
        EventKind::Fault(fault) => Some(((event.time_ns - origin_ns) as f64, event, fault)),
        _ => None,
    });
    faults.collect()
}

/// A number as the page writes it.
fn words(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> =
        digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

/// The place where a fault is drawn, in pixels of the page.
fn place(browser: &mut Browser, index: usize) -> (f64, f64) {
    let place = browser.evaluate(&format!(
        "(box => {{
           const [x, y] = map.px(map.chart, trace.faults.time[{index}], view.places[{index}]);
           return [box.x + x / devicePixelRatio, box.y + y / devicePixelRatio];
         }})(map.chart.ctx.canvas.getBoundingClientRect())"
    ));
    (place[0].as_f64().unwrap(), place[1].as_f64().unwrap())
}

/// Zooms in until a fault is alone, and moves the pointer to it.
fn hover_alone(browser: &mut Browser, index: usize) {
    for _ in 0..14 {
        let at = place(browser, index);
        browser.mouse("mouseWheel", at, json!({ "deltaX": 0, "deltaY": -400 }));
        browser.settle();
    }
    let at = place(browser, index);
    browser.mouse("mouseMoved", at, json!({}));
    browser.settle();
}

fn range(browser: &mut Browser, what: &str) -> (f64, f64) {
    let range = browser.evaluate(what);
    (range[0].as_f64().unwrap(), range[1].as_f64().unwrap())
}

/// The number of faults that the page shows.
fn counted(browser: &mut Browser) -> String {
    let text = browser.text("#meant");
    text.split(" of ").next().unwrap().to_owned()
}

#[test]
fn hover_brush_zoom_and_filters_tell_what_the_trace_holds() {
    let Some(mut browser) = Browser::start("page") else { return };
    let trace = Story::tell(40_000);
    let picture = Picture::new(&trace, None);
    let folder = Folder::new("page");
    browser.open(&folder.write("page.html", &picture.html().unwrap()));
    let faults = faults(&trace);

    // All faults, by kind and by mapping.
    assert_eq!(browser.text("#patterns th"), "Patterns");
    assert_eq!(counted(&mut browser), words(faults.len()));
    let kinds = browser.text("#kinds");
    for (kind, count) in picture.analysis().sums.kinds() {
        assert!(kinds.contains(&format!("{kind} {}", words(count as usize))), "{kinds}");
    }
    let most = picture.analysis().groups[0].sums.faults() as usize;
    assert_eq!(browser.text("#groups tbody tr:first-child td:nth-child(2)"), words(most));
    for pattern in &cowslip_trace::patterns::find(picture.analysis()) {
        let patterns = browser.text("#patterns");
        assert!(patterns.contains(&pattern.sentence), "{patterns}");
        assert!(patterns.contains(&words(pattern.faults as usize)), "{pattern:?} {patterns}");
    }

    // The kind's colour is at the fault's place; the hover shows its address, thread and mapping.
    browser.key("0");
    let index = faults.iter().position(|(_, event, _)| event.tid == PID + 1).unwrap();
    let (_, _, fault) = faults[index];
    let at = place(&mut browser, index);
    let (left, right) = range(&mut browser, "view.x");
    let over =
        browser.evaluate("(box => [box.x, box.width])(map.chart.over.getBoundingClientRect())");
    let share = (faults[index].0 - left) / (right - left);
    let x = over[0].as_f64().unwrap() + share * over[1].as_f64().unwrap();
    assert!((x - at.0).abs() < 1.0, "the time axis is linear: {x} {at:?}");
    hover_alone(&mut browser, index);
    let tip = browser.text("#tip");
    for wanted in [format!("{:#x}", fault.address), format!("scatter {}", PID + 1)] {
        assert!(tip.contains(&wanted), "{wanted} in {tip}");
    }
    assert!(tip.contains("first touch") && tip.contains("64 MiB anonymous map "), "{tip}");
    let colour = browser.evaluate(&format!(
        "(() => {{
           const [x, y] = map.px(map.chart, trace.faults.time[{index}], view.places[{index}]);
           const [red, green, blue] = map.chart.ctx.getImageData(x, y, 1, 1).data;
           const wanted = rgb(palette.kinds[trace.faults.kind[{index}]]);
           return [red, green, blue].every((it, at) => Math.abs(it - wanted[at]) < 60);
         }})()"
    ));
    assert_eq!(colour, true, "a dot of the kind's colour");

    browser.show("hover");
    browser.key("0");
    let is_of_libc =
        |(_, _, fault): &(f64, &Event, &Fault)| (LIBC..LIBC + MIB).contains(&fault.address);
    let of_libc = faults.iter().position(is_of_libc).unwrap();
    hover_alone(&mut browser, of_libc);
    let tip = browser.text("#tip");
    let offset = format!("file offset {:#x}", faults[of_libc].2.address - LIBC + LIBC_OFFSET);
    assert!(tip.contains("libc.so.6") && tip.contains(&offset), "{offset} in {tip}");
    browser.key("0");
    hover_alone(&mut browser, index);

    // When zoomed in, the tables cover the visible part.
    let in_view = counted(&mut browser);
    let (left, right) = range(&mut browser, "view.x");
    assert!(right - left < 1e9, "{left} {right}");
    let addresses = browser
        .evaluate("view.y.map(place => view.axis.at(place)).map(at => at && at.page * 4096)");
    let (low, high) = (addresses[0].as_f64().unwrap(), addresses[1].as_f64().unwrap());
    let is_in = |(time, _, fault): &&(f64, &Event, &Fault)| {
        (left..=right).contains(time) && (low..=high).contains(&(fault.address as f64))
    };
    assert_eq!(in_view, words(faults.iter().filter(is_in).count()));

    // A pattern's sentence has its own numbers; the last label of the time axis is not cut, even if it is
    // long.
    assert_eq!(browser.text("#patterns th"), "Patterns, told of the whole trace");
    let overhang = browser.evaluate(
        "(() => {
           const { chart } = map, [axis] = chart.axes, { ctx } = chart;
           ctx.font = axis.font[0];
           const ends = axis._splits.map((time, at) =>
             chart.valToPos(time, 'x', true) + ctx.measureText(axis._values[at]).width / 2);
           return Math.max(...ends) - ctx.canvas.width;
         })()",
    );
    assert!(overhang.as_f64().unwrap() <= 0.0, "{overhang}");

    // Reset, then a brush around the pool's whole band for a part of the time.
    browser.key("0");
    let band = browser.evaluate(&format!(
        "(box => {{
           const band = view.axis.bands.find(band => band.start * 4096 === {POOL});
           const [, low] = map.px(map.chart, 0, band.low - .003), [, high] = map.px(map.chart, 0, band.high + .003);
           return [box.y + high / devicePixelRatio, box.y + low / devicePixelRatio];
         }})(map.chart.ctx.canvas.getBoundingClientRect())"
    ));
    let (top, bottom) = (band[0].as_f64().unwrap(), band[1].as_f64().unwrap());
    browser.drag((at.0.max(500.0), top), (at.0.max(500.0) + 120.0, bottom), SHIFT);
    let (left, right) = range(&mut browser, "view.brush.x");
    let is_in_brush = |(time, _, fault): &&(f64, &Event, &Fault)| {
        (left..=right).contains(time) && (POOL..POOL + POOL_BYTES).contains(&fault.address)
    };
    let brushed = faults.iter().filter(is_in_brush).count();
    assert!(brushed > 100);
    browser.show("brush");
    assert!(browser.text("#meant").contains("in the brush"));
    assert_eq!(counted(&mut browser), words(brushed));
    assert_eq!(browser.text("#threads tbody td:nth-child(2)"), words(brushed), "one thread's");

    // A row is selected and deselected; a kind is switched off and on.
    browser.key("Escape");
    assert_eq!(counted(&mut browser), words(faults.len()));
    let row = browser.middle("#groups tbody tr");
    browser.click(row);
    assert_eq!(counted(&mut browser), words(most));
    let row = browser.middle("#groups tbody tr");
    browser.click(row);
    let button = browser.middle("#kinds button:not([hidden])");
    browser.click(button);
    let (kind, count) =
        picture.analysis().sums.kinds().into_iter().min_by_key(|pair| pair.0).unwrap();
    assert_eq!(counted(&mut browser), words(faults.len() - count as usize), "without {kind}");
    browser.key("Escape");

    // Arrows move, a drag zooms, a double click shows everything.
    let whole = range(&mut browser, "view.x");
    let middle = browser.middle("#map .u-over");
    browser.drag((middle.0 - 100.0, middle.1 - 50.0), (middle.0 + 100.0, middle.1 + 50.0), 0);
    let zoomed = range(&mut browser, "view.x");
    assert!(zoomed.1 - zoomed.0 < (whole.1 - whole.0) / 2.0, "{zoomed:?}");
    assert_eq!(range(&mut browser, "[rate.chart.scales.x.min, rate.chart.scales.x.max]"), zoomed);
    browser.key("ArrowRight");
    let moved = range(&mut browser, "view.x");
    assert!(moved.0 > zoomed.0 && moved.1 > zoomed.1);
    browser.mouse("mousePressed", middle, json!({ "button": "left", "clickCount": 1 }));
    browser.mouse("mouseReleased", middle, json!({ "button": "left", "clickCount": 1 }));
    browser.mouse("mousePressed", middle, json!({ "button": "left", "clickCount": 2 }));
    browser.mouse("mouseReleased", middle, json!({ "button": "left", "clickCount": 2 }));
    browser.settle();
    assert_eq!(range(&mut browser, "view.x"), whole);

    // Light, dark, and the system's theme.
    let background = "getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.evaluate(background), "rgb(255, 255, 255)");
    browser.key("t");
    browser.show("dark");
    assert_eq!(browser.evaluate(background), "rgb(20, 23, 28)");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// The kernel takes all faults: that pattern has a few more than the one of the memory, whose advice saves more.
#[test]
fn of_equal_patterns_the_page_begins_with_that_of_the_report() {
    let Some(mut browser) = Browser::start("equal") else { return };
    let mut trace = Trace::default();
    let mut then = |what| {
        let time_ns = 1_000 * trace.events.len() as u64;
        trace.events.push(Event { time_ns, pid: PID, tid: PID, what });
    };
    for (start, pages) in [(1 << 40, 4096), (2 << 40, 20)] {
        let range = VirtRange::new(start, pages * 4096);
        then(EventKind::Map(Map { range, protection: 3, flags: 0x22, ..Map::default() }));
        for page in 0..pages {
            let fault = Fault::at((start + page * 4096) as u64, 1 << 63);
            then(EventKind::Fault(Fault { in_user_mode: Some(false), ..fault }));
        }
    }
    let picture = Picture::new(&trace, None);
    let patterns = cowslip_trace::patterns::find(picture.analysis());
    assert!(patterns.len() == 2 && patterns[0].faults < patterns[1].faults, "{patterns:?}");
    let folder = Folder::new("equal");
    browser.open(&folder.write("page.html", &picture.html().unwrap()));
    let first = browser.text("#patterns tbody tr");
    assert!(first.contains(&patterns[0].sentence), "{first}");
}

/// A telephone's window, and a laptop's: nothing is wider than the window, and the picture has most of it.
#[test]
fn the_page_fits_narrow_and_wide_windows() {
    let Some(mut browser) = Browser::start("narrow") else { return };
    let trace = Story::tell(20_000);
    let folder = Folder::new("narrow");
    let page = folder.write("page.html", &Picture::new(&trace, None).html().unwrap());
    for (width, least_share) in [(390, 0.6), (1280, 0.4)] {
        browser.resize(width, 844);
        browser.open(&page);
        browser.settle();
        let widths = browser.evaluate(
            "[document.documentElement.scrollWidth, map.chart.over.offsetWidth, map.chart.root.offsetWidth]",
        );
        let [whole, plot, chart] = [0, 1, 2].map(|nth| widths[nth].as_u64().unwrap());
        let width = u64::from(width);
        assert!(whole <= width && chart <= width, "{widths}");
        assert!(plot as f64 >= width as f64 * least_share, "{widths}");
        browser.show(&format!("narrow-{width}"));
        // Nothing of the tables is cut off, and a tap tells of a fault inside the window.
        let ends = browser.evaluate(
            "Math.max(...[...document.querySelectorAll('table, button:not([hidden])')].map(part => part.getBoundingClientRect().right))",
        );
        assert!(ends.as_f64().unwrap() <= width as f64, "{ends}");
        let at = place(&mut browser, 100);
        browser.click(at);
        browser.settle();
        let tip = browser.evaluate(
            "(box => [box.left, box.right, box.width])(document.getElementById('tip').getBoundingClientRect())",
        );
        let [left, right, tip] = [0, 1, 2].map(|nth| tip[nth].as_f64().unwrap());
        assert!(tip > 0.0 && left >= 0.0 && right <= width as f64, "{left} {right} {tip}");
        browser.middle("#tables section:last-child");
        browser.show(&format!("narrow-{width}-tables"));
    }
    let before = range(&mut browser, "view.x");
    let button = browser.middle("button[data-key='+']");
    browser.click(button);
    let after = range(&mut browser, "view.x");
    assert!(after.1 - after.0 < before.1 - before.0, "{before:?} {after:?}");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// Faults of two functions, one of which is called by a third: the offsets of their calls in a file.
fn trace_with_stacks() -> Trace {
    const FILE: u64 = 0x40_0000;
    let mut trace = Trace::default();
    let range = VirtRange::new(FILE as usize, MIB as usize);
    let program = Map { range, protection: 5, name: Some("/none/app".into()), ..Map::default() };
    let mut then = |time_ns, what| trace.events.push(Event { time_ns, pid: PID, tid: PID, what });
    then(0, EventKind::Map(program));
    for time in 0..400_u64 {
        let stack = StackId(std::num::NonZeroU32::new(1 + u32::from(time >= 300)).unwrap());
        let address = 0x7000_0000 + time * 4096;
        let fault = Fault { stack: Some(stack), ..Fault::at(address, FILE) };
        then(1000 * time, EventKind::Fault(fault));
    }
    // The innermost first; a caller's frame is the place after the call.
    let place = |offset: u64| FILE + offset;
    trace.stacks =
        vec![[place(0x10), place(0x101)].into(), [place(0x20), place(0x31), place(0x101)].into()];
    trace
}

#[test]
fn the_flame_graph_shows_shares_of_functions_and_zooms_into_one() {
    let Some(mut browser) = Browser::start("flame") else { return };
    let folder = Folder::new("flame");
    let without = Trace { stacks: Vec::new(), events: Vec::new(), ..trace_with_stacks() };
    for trace in [without, trace_with_stacks()] {
        let html = Picture::new(&trace, None).html().unwrap();
        browser.open(&folder.write("page.html", &html));
        let is_hidden = browser.evaluate("document.getElementById('flame').hidden");
        assert_eq!(is_hidden, trace.stacks.is_empty());
    }
    let boxes = |browser: &mut Browser| {
        let list = "[...document.querySelectorAll('#flame button')].map(box =>
            [box.textContent, Math.round(box.offsetWidth / box.parentElement.offsetWidth * 100), parseInt(box.style.top)])";
        browser.evaluate(list)
    };
    let all = json!([
        ["all", 100, 0],
        ["app+0x100", 100, 1],
        ["app+0x10", 75, 2],
        ["app+0x30", 25, 2],
        ["app+0x20", 25, 3]
    ]);
    assert_eq!(boxes(&mut browser), all);
    browser.show("flame");
    let third = browser.middle("#flame button:nth-child(4)");
    browser.click(third);
    let chosen =
        json!([["all", 100, 0], ["app+0x100", 100, 1], ["app+0x30", 100, 2], ["app+0x20", 100, 3]]);
    assert_eq!(boxes(&mut browser), chosen);
    // The brush has the first quarter of the time, in which the other function faulted.
    browser.evaluate("view.setBrush({ x: [0, trace.duration_ns / 4], y: view.y })");
    browser.settle();
    let brushed = boxes(&mut browser);
    assert_eq!(brushed[2], json!(["app+0x10", 100, 2]), "{brushed}");
    let top = browser.middle("#flame button");
    browser.click(top);
    browser.evaluate("view.setBrush(null)");
    browser.settle();
    assert_eq!(boxes(&mut browser), all);
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

#[test]
fn what_a_trace_says_cannot_become_code() {
    const HOSTILE: &str =
        "</script><img src=x onerror=hacked=1><script>hacked=1</script>'\"${hacked=1}{{7*7}}";
    let header = Header {
        command: vec![HOSTILE.to_owned()],
        unseen: vec![HOSTILE.to_owned()],
        allocator: Some(HOSTILE.to_owned()),
        environment: [(HOSTILE.to_owned(), HOSTILE.to_owned())].into(),
        ..Header::default()
    };
    let event = |time_ns, what| Event { time_ns, pid: 1, tid: 1, what };
    let range = cowslip_sys::units::VirtRange::new(0x40_0000, 0x10_0000);
    let name = Some(format!("/tmp/{HOSTILE}").into());
    let trace = Trace {
        header,
        events: vec![
            event(0, EventKind::Exec { name: HOSTILE.into() }),
            event(1, EventKind::Map(Map { range, name, protection: 5, ..Map::default() })),
            event(2, EventKind::Fault(Fault::at(0x40_1234, 0x40_2000))),
            event(9, EventKind::Lost { count: 3 }),
        ],
        ..Trace::default()
    };
    let picture = Picture::new(&trace, None);
    let page = picture.html().unwrap();
    assert!(!page.contains("<img") && !page.contains("<script>hacked"));
    assert_eq!(page.matches("<script").count(), 3, "data, library and ours");
    assert!(page.contains("default-src 'none'"), "and what got in all the same could load nothing");
    let unseen = page.find("What the recorder could not see").expect("it is said, folded");
    assert!(page[..unseen].trim_end().ends_with("<summary>"), "{}", &page[unseen - 99..unseen]);
    let without_script =
        page.split("<noscript>").nth(1).expect("there is something without JavaScript");
    assert!(without_script.contains("switched off here"));

    let Some(mut browser) = Browser::start("hostile") else { return };
    let folder = Folder::new("hostile");
    browser.open(&folder.write("page.html", &page));
    let at = place(&mut browser, 0);
    browser.mouse("mouseMoved", at, json!({}));
    browser.settle();
    for element in ["h1", "dl", "#tip", "#threads", "#groups"] {
        let text = browser.text(element);
        assert!(text.contains("'\"${hacked=1}{{7*7}}"), "{element}: {text}");
    }
    assert!(browser.text(".statement .bad").contains("3 events"));
    assert_eq!(browser.evaluate("typeof hacked"), "undefined");
    assert_eq!(browser.evaluate("document.images.length"), 0);
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

#[test]
fn a_million_faults_become_a_page_that_draws_at_once() {
    let trace = Story::tell(1_026_000);
    let count = faults(&trace).len();
    assert!(count >= 1_000_000, "{count}");
    let began = Instant::now();
    let page = Picture::new(&trace, None).html().unwrap();
    let took = began.elapsed();
    println!("{count} faults: {took:.2?}, {} bytes", page.len());
    assert!(page.len() < 15_000_000, "{}", page.len());
    assert!(!page.contains(" src=") && !page.contains("@import") && !page.contains("url("));
    // It would take hours if its work grew with the square of the faults.
    assert!(took.as_secs() < 60, "{took:?}");

    let Some(mut browser) = Browser::start("million") else { return };
    let folder = Folder::new("million");
    browser.open(&folder.write("page.html", &page));
    let first_paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime";
    let first_paint_ms = browser.evaluate(first_paint).as_f64().unwrap();
    println!("first paint {first_paint_ms} ms, drawn {} ms", browser.evaluate("drawnAt"));
    assert!(first_paint_ms < 3000.0, "{first_paint_ms}");
    assert_eq!(counted(&mut browser), words(count));
    assert_eq!(browser.evaluate("map.isDense"), true);
    browser.show("million");
    let redraw = "(() => {
        const began = performance.now();
        for (const draw of view.listeners) draw();
        return performance.now() - began;
    })()";
    let fastest =
        (0..5).map(|_| browser.evaluate(redraw).as_f64().unwrap()).fold(f64::MAX, f64::min);
    println!("all of it drawn and counted again: {fastest} ms");
    assert!(fastest < 500.0, "{fastest}");
    let (x, y) = browser.middle("#map .u-over");
    for _ in 0..60 {
        browser.mouse("mouseWheel", (x, y), json!({ "deltaX": 0, "deltaY": -300 }));
        browser.settle();
        if browser.evaluate("map.isDense") == false {
            break;
        }
    }
    assert_eq!(browser.evaluate("map.isDense"), false, "dots after zooming in");
    browser.show("million-zoomed");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

#[test]
fn many_programs_one_fault_or_none() {
    let Some(mut browser) = Browser::start("many") else { return };
    let folder = Folder::new("many");
    browser
        .open(&folder.write("none.html", &Picture::new(&Trace::default(), None).html().unwrap()));
    assert_eq!(counted(&mut browser), "0");

    // A shell with nine programs; the number of faults in each is its own number.
    let mut events = Vec::new();
    let mut happened = |pid, what| {
        events.push(Event { time_ns: events.len() as u64 * 1000, pid, tid: pid, what });
    };
    for pid in 1..=9_u32 {
        happened(100, EventKind::Fork { child_pid: pid, child_tid: pid });
        happened(pid, EventKind::Exec { name: format!("program-{pid}").into() });
        for fault in 0..u64::from(pid) {
            happened(pid, EventKind::Fault(Fault::at(0x7000_0000 + fault * 4096, 0x40_0000)));
        }
    }
    let mut trace = Trace { events, ..Trace::default() };
    trace.header.sampling_period = 10;
    trace.is_cut_short = true;
    let page = Picture::new(&trace, None).html().unwrap();
    assert!(page.contains("One fault in 10") && page.contains("the end is missing"));
    browser.open(&folder.write("many.html", &page));
    assert_eq!(counted(&mut browser), "39", "those of the six busiest: 9 + 8 + … + 4");
    let option = browser.evaluate("[...document.querySelectorAll('#spaces option')].findIndex(it => it.text.startsWith('program-2 '))");
    assert!(option.as_i64().unwrap() > 0);
    browser.evaluate(&format!(
        "(list => {{ list.selectedIndex = {option}; list.dispatchEvent(new Event('change')); }})(document.getElementById('spaces'))"
    ));
    browser.settle();
    browser.show("programs");
    assert_eq!(counted(&mut browser), "2");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}
