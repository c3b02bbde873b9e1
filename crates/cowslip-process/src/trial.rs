//! A trial: may running programs be held and copied here?

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cowslip_sys::AsFd;
use cowslip_sys::error::{Error, ErrorKind, Result, file_error};

use crate::branch::{CopyOptions, PrivateFolders};
use crate::look::look;

const OPERATION: &str = "copy a running program";

/// Holds a program that sleeps, and runs a copy of it. Returns the time for which the program stood still.
///
/// # Errors
/// Those of [`look`], [`Plan::hold`](crate::Plan::hold) and [`Holder::branch`](crate::Holder::branch): the right or the part of
/// the kernel that is missing.
pub fn trial() -> Result<Duration> {
    /// It may be loading its libraries when it is first looked at.
    const LOOKS: u32 = 100;
    const BETWEEN: Duration = Duration::from_millis(5);
    let program = Sleeper::start()?;
    let pid = program.0.id().cast_signed();
    let mut plan = look(pid);
    for _ in 0..LOOKS {
        if !plan.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsupported) {
            break;
        }
        std::thread::sleep(BETWEEN);
        plan = look(pid);
    }
    let mut holder = plan?.hold()?;
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|error| file_error(OPERATION, "/dev/null".as_ref(), error))?;
    let streams = [null.as_fd(); 3];
    let private = &PrivateFolders::default();
    let options = CopyOptions { streams, folder: None, private, has_own_network: false, job: None };
    holder.branch(&options)?;
    Ok(holder.pause())
}

/// It ends with this value.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Result<Self> {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self).map_err(|error| Error::from_io("start sleep(1)", &error))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
