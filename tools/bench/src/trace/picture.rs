//! A million faults as a page: the time to make it, its size, and the time until a browser shows it.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::report::Row;

use super::toucher::{Toucher, Work};
use super::{Bench, COWSLIP};
use crate::error::{Error, Result, during};
use crate::interrupt::Interrupt;
use crate::program::{self, Running};

pub(super) const SECONDS: &str = "html_time_1M";
pub(super) const BYTES: &str = "html_bytes_1M";
pub(super) const PAINT: &str = "first_paint_1M";
const MILLION: Work = Work { threads: 2, rounds: 31, period_ns: 0 };
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// Navigates, two frames after the picture is there, to an address that contains the milliseconds since the page began
/// to load. The page may send no requests, but it may be left.
const WITNESS: &str = r#"<script>(() => {
  const state = () => document.body.dataset.state;
  const told = () => location.replace(`http://127.0.0.1:PORT/${state()}/${performance.now()}`);
  const frame = next => requestAnimationFrame(next);
  const look = () => state() ? frame(() => frame(told)) : frame(look);
  look();
})()</script>"#;

pub(super) fn measure(bench: &mut Bench<'_>, toucher: &Toucher) -> Result<()> {
    bench.progress.phase("recording a million faults");
    let [trace, numbers, page] = ["1M.trace", "1M.json", "1M.html"].map(|name| toucher.file(name));
    let mut recorder = toucher.under_cowslip(MILLION, &trace, &numbers, &[])?;
    let touched = toucher.run(&mut recorder, bench.stop)?;
    bench.progress.phase("drawing them");
    let mut draw = Command::new(program::cowslip()?);
    draw.args(["trace", "html"]).arg(&trace).arg("-o").arg(&page);
    let began = Instant::now();
    toucher.folder.finish(&mut draw, bench.stop)?;
    let took_ns = began.elapsed().as_nanos() as f64;
    let bytes = fs::metadata(&page).map_err(during("look at the page"))?.len();
    for (metric, value, unit) in [(SECONDS, took_ns, "ns"), (BYTES, bytes as f64, "bytes")] {
        bench.report.row(Row::new(COWSLIP, metric, "value", value, unit).n(touched.faults));
    }
    bench.progress.phase("showing them in a browser");
    let row = match first_paint(toucher, &page, bench.stop) {
        Ok(ns) => Row::new(COWSLIP, PAINT, "value", ns, "ns").n(touched.faults),
        Err(Error::Failed(why)) => Row::skipped(COWSLIP, PAINT, why),
        Err(error) => return Err(error),
    };
    bench.report.row(row);
    Ok(())
}

/// Nanoseconds from the start of the page's loading to its picture.
fn first_paint(toucher: &Toucher, page: &Path, stop: &Interrupt) -> Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(during("listen"))?;
    listener.set_nonblocking(true).map_err(during("listen"))?;
    let port = listener.local_addr().map_err(during("listen"))?.port();
    let witness = WITNESS.replace("PORT", &port.to_string());
    let text = fs::read_to_string(page).map_err(during("read the page"))?;
    let watched = toucher.folder.write("watched.html", &(text + &witness))?;
    let mut browser = browser(toucher, &watched)?;
    let began = Instant::now();
    loop {
        stop.check()?;
        match listener.accept() {
            Ok((stream, _)) => return milliseconds(stream).map(|ms| ms * 1e6),
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(during("wait for the page")(error));
            }
            Err(_) if browser.ended()?.is_some() => {
                return Err(Error::Failed("the browser ended without showing the page".into()));
            }
            Err(_) if began.elapsed() > PATIENCE => {
                return Err(Error::Failed("the browser did not show the page".into()));
            }
            Err(_) => thread::sleep(LOOK),
        }
    }
}

fn browser(toucher: &Toucher, page: &Path) -> Result<Running> {
    let mut missing = None;
    for name in BROWSERS {
        let mut command = Command::new(name);
        // Its sandbox does not work for root, and a display is not needed.
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
        let profile = toucher.file("profile");
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.arg(format!("file://{}", page.display()));
        let (out, err) = (toucher.file("browser.out"), toucher.file("browser.err"));
        match Running::start(&mut command, &out, &err) {
            Ok(running) => return Ok(running),
            Err(error) => missing = missing.or(Some(error)),
        }
    }
    let why = missing.map(|error| error.to_string()).unwrap_or_default();
    Err(Error::Failed(format!("{why}; apt-get install chromium")))
}

/// Milliseconds from the request's path.
fn milliseconds(mut stream: TcpStream) -> Result<f64> {
    stream.set_nonblocking(false).map_err(during("hear the page"))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(during("hear the page"))?;
    let mut request = [0; 4096];
    let length = stream.read(&mut request).map_err(during("hear the page"))?;
    let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
    let request = String::from_utf8_lossy(&request[..length]);
    let told =
        request.split(' ').nth(1).and_then(|path| path.strip_prefix("/ready/")?.parse().ok());
    told.ok_or_else(|| Error::Failed(format!("the page could not draw: {request:?}")))
}
