//! `cowslip serve --firecracker`: the RAM of an image for machines.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use cowslip::image::{Image, OnDamage, RestoreOptions};
use cowslip_serve::{Needs, confine};
use cowslip_vm::firecracker::{Content, Handler, Options};

use crate::commands::signals::Signals;
use crate::exit::{self, CommandResult, Failure, USAGE};
use crate::remote;

pub(super) fn run(
    images: &[PathBuf],
    socket: PathBuf,
    most_machines: u32,
    whole: bool,
) -> CommandResult {
    let [image] = images else {
        return Err(Failure::new(USAGE, "--firecracker serves one image: it is not told which"));
    };
    if remote::is_url(image.as_os_str()) {
        let why = "--firecracker serves a file: fetch it with `cowslip image pull`";
        return Err(Failure::new(USAGE, why));
    }
    let signals = Signals::listen(None).map_err(exit::system("listen for signals"))?;
    // A message that cannot be written ends nothing.
    let tell = |message: &str| drop(writeln!(io::stderr(), "cowslip serve: {message}"));
    let handler =
        Handler::bind(&socket).map_err(exit::io(format_args!("listen at {}", socket.display())))?;
    // From here on it reads a file that others may have written, and hears machines.
    let needs = Needs { images: vec![image.clone()], socket: Some(socket), cache: None };
    confine(&needs, tell).map_err(exit::io("give up rights"))?;
    let on_damage = OnDamage::new(move |error, _| tell(&error.to_string()));
    let options = RestoreOptions { on_damage: Some(on_damage), ..RestoreOptions::default() };
    let content = Arc::new(Content::restore(&Image::open(image)?, &options)?);
    let options = Options { most_machines: most_machines as usize, whole, tell };
    let served = handler.run(&content, &options, signals.woken());
    served.map_err(exit::system("wait for machines"))?;
    Ok(ExitCode::SUCCESS)
}
