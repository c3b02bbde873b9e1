//! `cowslip serve`: images in memory, once a machine, for all processes that restore them.

mod machines;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cowslip::image::Image;
use cowslip::units::ByteCount;
use cowslip_serve::{
    Needs, Options, Server, confine, default_socket, inherited_listener, metrics_of,
};
use cowslip_sys::process;

use super::numbers::{byte_count, whole};
use super::signals::Signals;
use crate::exit::{self, CommandResult};
use crate::remote;

/// Hold images in memory, once a machine, for every process that restores them
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip serve store.image index.image --memory 8G\n  \
    cowslip serve s3://models/llama/latest --cache-size 100G\n  \
    COWSLIP_SERVE=/run/cowslip-serve.socket ./worker\n  \
    cowslip serve --metrics\n  \
    cowslip serve guest.cowslip --firecracker /run/vm/pages.socket\n\nOnly processes of the same user, and of root, get anything. An image that is \
    given up, and a server that ends, harm nobody who has restored. The server gives up its rights, and reads \
    only the folders of its images.")]
pub(crate) struct Args {
    /// The images: files or URLs
    #[arg(required_unless_present = "metrics", value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// The Unix socket; else the one that COWSLIP_SERVE names, $XDG_RUNTIME_DIR/cowslip-serve.socket, or
    /// /run/cowslip-serve.socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Memory that the images may have; beyond it the least recently used is given up [default: half of the
    /// machine's memory and swap]
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    memory: Option<ByteCount>,
    /// Clients at a time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = whole(1..=10_000u32))]
    clients: u32,
    /// Where images at URLs are kept, so that each is fetched once [default: $CACHE_DIRECTORY,
    /// $XDG_CACHE_HOME/cowslip or ~/.cache/cowslip]
    #[arg(long, value_name = "DIRECTORY")]
    cache: Option<PathBuf>,
    /// Disk space for them; beyond it the least recently used goes
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = byte_count)]
    cache_size: ByteCount,
    /// Print the server's counters, in Prometheus' format, and end
    #[arg(long, conflicts_with_all = ["images", "memory"])]
    metrics: bool,
    /// Give the RAM of the image to machines of Firecracker that connect to this socket, instead
    #[arg(long, value_name = "PATH", conflicts_with_all = ["socket", "memory", "cache", "metrics"])]
    firecracker: Option<PathBuf>,
    /// Bring in all pages of each machine, which then needs this command no more
    #[arg(long, requires = "firecracker")]
    whole: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    if let Some(socket) = args.firecracker {
        return machines::run(&args.images, socket, args.clients, args.whole);
    }
    let path = args.socket.unwrap_or_else(default_socket);
    if args.metrics {
        let text = metrics_of(&path);
        let text = text.map_err(exit::io(format_args!("ask the server at {}", path.display())))?;
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).map_err(exit::io("write to standard output"))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Done before another file could get its number.
    let inherited = inherited_listener().map_err(exit::io("take the socket that was passed"))?;
    let signals = Signals::listen(None).map_err(exit::system("listen for signals"))?;
    let half = ByteCount(process::memory_and_swap().0 / 2);
    // A message that cannot be written ends nothing.
    let tell = |message: &str| drop(writeln!(io::stderr(), "cowslip serve: {message}"));
    let (opener, cache) = remote::opener(&args.images, args.cache, args.cache_size, tell)?;
    let of_files = args.images.iter().filter(|image| !remote::is_url(image.as_os_str()));
    let files = of_files.cloned().collect();
    let options = Options {
        opener,
        images: args.images,
        most_clients: args.clients as usize,
        most_memory: args.memory.unwrap_or(half),
    };
    let socket = inherited.is_none().then(|| path.clone());
    let server = match inherited {
        Some(listener) => Server::on(listener, options, tell),
        None => Server::bind(&path, options, tell)
            .map_err(exit::io(format_args!("listen at {}", path.display())))?,
    };
    // From here on it reads files that others may have written.
    let needs = Needs { images: files, cache, socket };
    confine(&needs, tell).map_err(exit::io("give up rights"))?;
    // A file that cannot be served is an error now. At a URL an image may be published later.
    for image in &needs.images {
        Image::open(image)?;
    }
    server.run(signals.woken()).map_err(exit::system("wait for clients"))?;
    Ok(ExitCode::SUCCESS)
}
