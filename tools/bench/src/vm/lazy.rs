//! Lazy restores of a guest's RAM: from an image, from a server that has it in memory, and by the handler of Firecracker's
//! page faults, which has that server's memory, beside a private mapping of a tmpfs that has it.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use cowslip::image::{Image, RestoreOptions, SaveOptions, Via};
use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes};
use cowslip_sys::memory::Advice;
use cowslip_sys::uffd::{self, Features, RegisterMode, Uffd};
use cowslip_sys::{AsFd, socket, tmpfs};
use cowslip_vm::{GuestRam, GuestTemplate};
use serde_json::json;

use super::guest::{FIRST, Guest, PAGE, Ram, read_page, wrong_in};
use super::{COWSLIP, PATIENCE};
use crate::bench::Bench;
use crate::error::{Error, Result, during};
use crate::host::warm;
use crate::memory::{Anonymous, Memory};
use crate::program::{self, Folder, Running};
use crate::report::Row;
use crate::rows::push_durations;

pub(super) const MAPPED: &str = "tmpfs-huge";
/// Time until the RAM can be used.
const READY: &str = "lazy_ready";
/// Time of the first touch then.
pub(super) const FIRST_PAGE: &str = "lazy_first_page";
/// Time from the beginning until each page has been touched.
pub(super) const ALL: &str = "lazy_all";
const FROM_IMAGE: &str = "image";
pub(super) const SERVED: &str = "served";
const BY_FAULTS: &str = "firecracker";
const WHOLE: &str = "firecracker, whole";
const LOOK: Duration = Duration::from_millis(5);

pub(super) fn measure(bench: &mut Bench<'_>, bytes: u64, runs: u32) -> Result<()> {
    bench.progress.phase("an image of a guest");
    let folder = Folder::new("vm")?;
    let path = folder.path().join("guest.cowslip");
    save(bytes, &path)?;
    let image = Image::open(&path)?;
    let server = Server::start(&folder, &path, &image)?;
    let handlers =
        [Handler::start(&server, &path, &[])?, Handler::start(&server, &path, &["--whole"])?];
    let ways: [(&str, Option<&str>); 5] = [
        (COWSLIP, Some(FROM_IMAGE)),
        (COWSLIP, Some(SERVED)),
        (COWSLIP, Some(BY_FAULTS)),
        (COWSLIP, Some(WHOLE)),
        (MAPPED, None),
    ];
    let file = match in_tmpfs(&image, bytes) {
        Ok(file) => Some(file),
        Err(Error::Failed(why)) => {
            bench.report.row(Row::skipped(MAPPED, ALL, why).size_bytes(bytes));
            None
        }
        Err(error) => return Err(error),
    };
    let mut times = [const { [const { Vec::new() }; 3] }; 5];
    for round in bench.clock.rounds(1.0, 3, 1 + runs) {
        for (way, times) in times.iter_mut().enumerate() {
            bench.stop.check()?;
            let (system, variant) = ways[way];
            bench.progress.phase(&format!("lazy restores: {}", variant.unwrap_or(system)));
            warm(ByteCount(bytes), bench.stop)?;
            let took = match (way, &file) {
                (0, _) => from_image(&path)?,
                (1, _) => served(&path, &server.socket)?,
                (2 | 3, _) => by_faults(&handlers[way - 2].socket, bytes)?,
                (_, Some(file)) => mapped(file, bytes)?,
                _ => continue,
            };
            // The first round warms up.
            if round > 0 {
                took.iter().zip(times).for_each(|(took, times)| times.push(took.as_nanos() as f64));
            }
        }
    }
    for ((system, variant), times) in ways.iter().zip(&times) {
        for (metric, times) in [READY, FIRST_PAGE, ALL].iter().zip(times) {
            let row = Row::new(system, metric, "", 0.0, "ns").size_bytes(bytes);
            push_durations(bench.report, &row.variant(*variant), times);
        }
    }
    Ok(())
}

/// Saves a guest that has written all of its RAM.
pub(super) fn save(bytes: u64, path: &Path) -> Result<()> {
    let ram = super::ram(bytes)?;
    let mut guest = Guest::new(ram.memory())?;
    guest.pass()?;
    let mut proceed = |_| ControlFlow::Continue(());
    ram.snapshot(PATIENCE)?.save(path, &SaveOptions::default(), &mut proceed)?;
    Ok(())
}

/// Times until it could be used, of the first touch, and until all has been touched.
fn touch(ram: &impl Ram, began: Instant) -> [Duration; 3] {
    let ready = began.elapsed();
    let len = ram.range().len as u64;
    let first = Instant::now();
    read_page(ram, FIRST + (len - FIRST) / 2 / PAGE * PAGE);
    let first = first.elapsed();
    (FIRST..len).step_by(PAGE as usize).for_each(|at| read_page(ram, at));
    [ready, first, began.elapsed()]
}

fn checked(ram: &impl Ram, took: [Duration; 3]) -> Result<[Duration; 3]> {
    match wrong_in(ram)? {
        0 => Ok(took),
        wrong => Err(Error::Failed(format!("{wrong} words of a restored guest are wrong"))),
    }
}

fn from_image(path: &Path) -> Result<[Duration; 3]> {
    let began = Instant::now();
    let image = Image::open(path)?;
    let options = RestoreOptions { via: Via::File, ..RestoreOptions::default() };
    let (ram, _rest) = GuestRam::restore(&image, &options, &mut |_| ControlFlow::Continue(()))?;
    let memory = ram.memory();
    let took = touch(&memory, began);
    checked(&memory, took)
}

fn served(path: &Path, socket: &Path) -> Result<[Duration; 3]> {
    let began = Instant::now();
    let template = GuestTemplate::via(socket, &Image::open(path)?)?;
    let clone = GuestRam::clone_of(&template)?;
    let memory = clone.memory();
    let took = touch(&memory, began);
    checked(&memory, took)
}

/// Memory as Firecracker's, whose missing pages a handler brings.
fn by_faults(socket: &Path, bytes: u64) -> Result<[Duration; 3]> {
    let began = Instant::now();
    let memory = Memory::anonymous(bytes as usize, Anonymous::Base)?;
    let (fd, _) = uffd::open().map_err(during("open a userfaultfd"))?;
    let uffd = Uffd::new(fd, Features::empty()).map_err(during("agree on features"))?;
    let range = memory.range();
    uffd.register(range, RegisterMode::MISSING).map_err(during("register memory"))?;
    let stream = UnixStream::connect(socket).map_err(during("connect to a handler"))?;
    let page = page_size_bytes();
    let region = json!({
        "base_host_virt_addr": range.start, "size": range.len, "offset": 0, "page_size": page,
    });
    let message = json!([region]).to_string();
    let sent = socket::send(stream.as_fd(), message.as_bytes(), &[uffd.as_fd()]);
    sent.map_err(during("hand a userfaultfd over"))?;
    let took = touch(&&memory, began);
    checked(&&memory, took)
}

fn mapped(file: &File, bytes: u64) -> Result<[Duration; 3]> {
    let began = Instant::now();
    let file = file.try_clone().map_err(during("copy a descriptor"))?;
    let memory = Memory::private_file(file, bytes as usize)?;
    memory.advise(Advice::HugePage)?;
    let took = touch(&&memory, began);
    checked(&&memory, took)
}

/// The content of the image in a file of a tmpfs with huge pages.
fn in_tmpfs(image: &Image, bytes: u64) -> Result<File> {
    let file = tmpfs::huge_file(bytes).map_err(during("mount a tmpfs with huge pages"))?;
    let file = File::from(file);
    let mut content = vec![0; CHUNK_BYTES];
    for chunk in image.used_chunks(0) {
        image.read_chunk(0, chunk, &mut content)?;
        let at = u64::from(chunk) * CHUNK_BYTES as u64;
        file.write_all_at(&content, at).map_err(during("fill a tmpfs"))?;
    }
    Ok(file)
}

/// A handler of page faults, with the memory of a server.
struct Handler {
    _process: Running,
    socket: PathBuf,
}

impl Handler {
    fn start(server: &Server, path: &Path, more: &[&str]) -> Result<Self> {
        let socket = server.socket.with_extension(format!("pages{}", more.concat()));
        let file = |name: &str| socket.with_extension(name);
        let mut command = Command::new(program::cowslip()?);
        command.env("COWSLIP_SERVE", &server.socket);
        command.arg("serve").arg(path).arg("--firecracker").arg(&socket).args(more);
        let mut process = Running::start(&mut command, &file("out"), &file("err"))?;
        let began = Instant::now();
        while let Err(error) = UnixStream::connect(&socket) {
            if process.ended()?.is_some() || began.elapsed() > PATIENCE {
                return Err(during("start a handler of page faults")(error));
            }
            thread::sleep(LOOK);
        }
        Ok(Self { _process: process, socket })
    }
}

/// A server that has the image in memory.
pub(super) struct Server {
    _process: Running,
    pub(super) socket: PathBuf,
}

impl Server {
    pub(super) fn start(folder: &Folder, path: &Path, image: &Image) -> Result<Self> {
        let file = |name: &str| folder.path().join(name);
        let socket = file("serve.socket");
        let mut command = Command::new(program::cowslip()?);
        command.arg("serve").arg(path).arg("--socket").arg(&socket);
        let mut process = Running::start(&mut command, &file("serve.out"), &file("serve.err"))?;
        let began = Instant::now();
        // A request for a template waits until all of it is there.
        while let Err(error) = GuestTemplate::via(&socket, image) {
            if process.ended()?.is_some() || began.elapsed() > PATIENCE {
                return Err(error.into());
            }
            thread::sleep(LOOK);
        }
        Ok(Self { _process: process, socket })
    }
}
