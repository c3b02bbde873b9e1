//! `cowslip warm`: the program, its holder, and the copies that are running.

use std::io::{self, BufRead, BufReader, PipeWriter, Read, Stdin};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cowslip_process::{Copy, CopyOptions, Holder, Lack, PrivateFolders, look};
use cowslip_sys::error::Error;
use cowslip_sys::{AsFd, AsRawFd, Errno, OwnedFd, packets, process, socket};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::point::{Point, listens, waits_to_read};
use super::{Args, JOB_VARIABLE, MOST_MESSAGE_BYTES, VERSION, prefix};
use crate::commands::passed_on::PassedOn;
use crate::commands::signals::unless_ignored;
use crate::exit::{self, CommandResult, FAILED, Failure, NO};

/// Before another connection is accepted where one could not be.
const REST: Duration = Duration::from_millis(10);

pub(super) fn run(args: &Args) -> CommandResult {
    let name = &args.name;
    let signals = [SIGINT, SIGQUIT, SIGTERM].into_iter().chain(unless_ignored(SIGHUP));
    let mut signals = PassedOn::listen(signals).map_err(exit::system("listen to signals"))?;
    let listener =
        packets::listen_at_name(format!("{}{name}", prefix()).as_bytes()).map_err(|errno| {
            match errno {
                Errno::ADDRINUSE => Failure::new(FAILED, format!("{name} is warm already")),
                errno => exit::system(format!("keep {name}"))(errno.into()),
            }
        })?;
    let began = Instant::now();
    let mut program = Program::start(args)?;
    let job = program.reach(args, &mut signals)?;
    let plan = look(program.pid())?;
    // Copies get streams of their own.
    let is_stream =
        |lack: &Lack| (0..3).any(|number| lack.what.starts_with(&format!("descriptor {number},")));
    let of_program = |lack: &&Lack| !lack.is_of_checkpoint() && !is_stream(lack);
    plan.lacks().iter().filter(of_program).for_each(|lack| errln!("cowslip: {lack}"));
    let holder = plan.hold()?;
    errln!(
        "cowslip: {name} is warm after {:.2} s: {} threads; it {} arguments",
        began.elapsed().as_secs_f64(),
        holder.threads().len(),
        if job.is_some() { "reads" } else { "takes no" }
    );
    // Copies are of the holder.
    drop(program);
    let input = args.while_input.then(io::stdin);
    Server { holder, job, listener, signals, input, clients: Vec::new() }.serve()
}

/// The program, on its way to the point.
struct Program {
    child: Child,
    /// The other ends of its standard input and of its job: it waits to read.
    _input: PipeWriter,
    _job: PipeWriter,
    /// The number of its descriptor for the job.
    job: i32,
    has_said: Arc<AtomicBool>,
}

impl Program {
    fn start(args: &Args) -> Result<Self, Failure> {
        let failed = || exit::system("start the program");
        let ((input, kept_input), (job, kept_job)) =
            (io::pipe().map_err(failed())?, io::pipe().map_err(failed())?);
        // It is inherited: the number is the program's, too.
        process::keep_at_exec(job.as_fd()).map_err(|errno| failed()(errno.into()))?;
        let mut command = Command::new(&args.command[0]);
        command.args(&args.command[1..]).env(JOB_VARIABLE, job.as_raw_fd().to_string());
        command.stdin(Stdio::from(OwnedFd::from(input)));
        if let Point::Line(_) = args.until {
            command.stdout(Stdio::piped());
        }
        // Until it is held: copies are of the holder.
        process::end_with_this_thread(&mut command);
        let word = args.command[0].to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|error| {
            Failure::new(exit::not_run(&error), format!("start {word}: {error}"))
        })?;
        let has_said = Arc::new(AtomicBool::new(false));
        if let (Point::Line(text), Some(output)) = (&args.until, child.stdout.take()) {
            let (text, has_said) = (text.clone(), Arc::clone(&has_said));
            std::thread::spawn(move || {
                for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line);
                    errln!("{}", line.trim_end_matches('\r'));
                    has_said.fetch_or(line.contains(&text), Relaxed);
                }
            });
        }
        let number = job.as_raw_fd();
        Ok(Self { child, _input: kept_input, _job: kept_job, job: number, has_said })
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits until it is at its point. Returns the descriptor of its job, if it waits to read that.
    fn reach(&mut self, args: &Args, signals: &mut PassedOn) -> Result<Option<i32>, Failure> {
        const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
        let began = Instant::now();
        while began.elapsed() < args.timeout {
            std::thread::sleep(BETWEEN_LOOKS);
            if let Some(signal) = signals.take() {
                let why = format!("ended by signal {signal} before the program's point");
                return Err(Failure::new(NO, why));
            }
            if let Some(status) =
                self.child.try_wait().map_err(exit::system("wait for the program"))?
            {
                return Err(Failure::new(
                    NO,
                    format!("the program ended before its point: {status}"),
                ));
            }
            let reads = waits_to_read(self.pid(), [0, self.job]);
            let is_there = match &args.until {
                Point::Read => reads.is_some(),
                Point::Line(_) => self.has_said.load(Relaxed),
                Point::Port(port) => listens(self.pid(), *port),
                Point::After(time) => began.elapsed() >= *time,
            };
            if is_there {
                return Ok(reads.filter(|number| *number == self.job));
            }
        }
        let seconds = args.timeout.as_secs_f64();
        Err(Failure::new(
            NO,
            format!(
                "the program did not come to its point within {seconds} s; see --until and --timeout"
            ),
        ))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Server {
    holder: Holder,
    job: Option<i32>,
    listener: OwnedFd,
    signals: PassedOn,
    /// Its end is this command's.
    input: Option<Stdin>,
    clients: Vec<Client>,
}

/// A `cowslip start`, and its copy once it has asked for one. The copy ends with this.
struct Client {
    connection: OwnedFd,
    copy: Option<Copy>,
    is_gone: bool,
}

impl Server {
    /// Serves until a signal comes, or its input ends. Copies end with it.
    fn serve(mut self) -> CommandResult {
        loop {
            let mut fds = vec![self.signals.woken(), self.listener.as_fd()];
            for client in &self.clients {
                fds.push(client.connection.as_fd());
                fds.push(client.copy.as_ref().map_or(client.connection.as_fd(), AsFd::as_fd));
            }
            fds.extend(self.input.as_ref().map(AsFd::as_fd));
            let ready = process::wait_many_readable(&fds, None)
                .map_err(|errno| exit::system("wait for starts")(errno.into()))?;
            let is_over = match &mut self.input {
                Some(input) if ready.last() == Some(&true) => {
                    !matches!(input.read(&mut [0; 64]), Ok(1..))
                }
                _ => false,
            };
            if is_over || self.signals.take().is_some() {
                return Ok(ExitCode::SUCCESS);
            }
            for (client, ready) in self.clients.iter_mut().zip(ready[2..].chunks(2)) {
                if ready[1] && client.copy.is_some() {
                    client.end();
                } else if ready[0] {
                    client.hear(&mut self.holder, self.job);
                }
            }
            self.clients.retain(|client| !client.is_gone);
            if ready[1] {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        let Ok(connection) = packets::accept(self.listener.as_fd()) else {
            // Too many open files, most likely: those of copies will close.
            std::thread::sleep(REST);
            return;
        };
        // Its streams and its folder are this user's.
        if packets::peer(connection.as_fd()).is_ok_and(|peer| peer.uid == process::effective_uid())
        {
            self.clients.push(Client { connection, copy: None, is_gone: false });
        }
    }
}

impl Client {
    fn say(&self, message: &Value) {
        // One that is gone is seen at the next look.
        let _ = socket::send(self.connection.as_fd(), message.to_string().as_bytes(), &[]);
    }

    /// Its copy has ended.
    fn end(&mut self) {
        self.is_gone = true;
        match self.copy.as_mut().map(Copy::status) {
            Some(Ok(status)) => self.say(&json!({"status": status})),
            Some(Err(error)) => self.say(&json!({"error": error.to_string()})),
            None => {}
        }
    }

    fn hear(&mut self, holder: &mut Holder, job: Option<i32>) {
        let mut buffer = vec![0; MOST_MESSAGE_BYTES];
        let received = socket::receive(self.connection.as_fd(), &mut buffer);
        let Ok((len @ 1.., files)) = received else {
            self.is_gone = true;
            return;
        };
        let message: Value = serde_json::from_slice(&buffer[..len]).unwrap_or_default();
        if let Some(signal) = message["signal"].as_i64() {
            // An error means that it has ended.
            self.copy.as_ref().map(|copy| copy.signal(signal as i32));
            return;
        }
        let began = Instant::now();
        match start(holder, job, &message, &files) {
            Ok(copy) => {
                let running = began.elapsed().as_nanos() as u64;
                self.say(&json!({"pid": copy.pid(), "running_ns": running}));
                self.copy = Some(copy);
            }
            Err(why) => {
                self.say(&json!({"error": why}));
                self.is_gone = true;
            }
        }
    }
}

/// Starts a copy for a message.
fn start(
    holder: &mut Holder,
    job: Option<i32>,
    message: &Value,
    files: &[OwnedFd],
) -> Result<Copy, String> {
    let ([input, output, error, folder], true) = (files, message["version"] == VERSION) else {
        return Err("the request is of another version of Cowslip".into());
    };
    let has_arguments = message["arguments"].as_array().is_some_and(|words| !words.is_empty());
    if job.is_none() && has_arguments {
        return Err(format!("the program takes no arguments: it does not read {JOB_VARIABLE}"));
    }
    let mut seed = [0; 32];
    process::fill_random(&mut seed).map_err(|errno| io::Error::from(errno).to_string())?;
    let text = json!({
        "schema": "cowslip.job/1",
        "arguments": message["arguments"],
        "environment": message["environment"],
        "folder": message["folder"],
        "seed": seed.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
    });
    let text = text.to_string();
    let folders: Vec<PathBuf> = match &message["private"] {
        Value::Null => Vec::new(),
        folders => serde_json::from_value(folders.clone())
            .map_err(|error| format!("the request's private folders: {error}"))?,
    };
    let private = private(holder, &folders).map_err(|error| error.to_string())?;
    let options = CopyOptions {
        streams: [input, output, error].map(|file| file.as_fd()),
        folder: Some(folder.as_fd()),
        private: &private,
        has_own_network: message["net"] == true,
        job: job.map(|number| (number, text.as_bytes())),
    };
    holder.branch(&options).map_err(|error: Error| error.to_string())
}

/// Finds the folders of a copy's own, and reports the files there that it shares nevertheless.
fn private(holder: &Holder, folders: &[PathBuf]) -> Result<PrivateFolders, Error> {
    let private = PrivateFolders::new(folders)?;
    private.shared(holder.pid())?.iter().for_each(|sentence| errln!("cowslip: {sentence}"));
    Ok(private)
}
