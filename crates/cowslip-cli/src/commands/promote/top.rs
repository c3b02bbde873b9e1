//! `cowslip promote top`: the huge pages of processes, and the actions on them.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cowslip_promote::metrics::Source;
use signal_hook::consts::SIGHUP;

use super::args::TopArgs;
use super::screen::Screen;
use super::top_source;
use super::top_table::View;
use crate::commands::signals::Signals;
use crate::exit::{self, CommandResult};
use cowslip_report::{self as output, sink};

pub(super) fn run(args: &TopArgs) -> CommandResult {
    let mut source = top_source::from_args(args)?;
    if args.once || args.json.is_some() || !io::stdout().is_terminal() {
        return once(&mut source, args);
    }
    live(&mut source, args)
}

fn once(source: &mut Source, args: &TopArgs) -> CommandResult {
    let now = source.settled()?;
    if let Some(file) = &args.json {
        let whole = now.to_json(&source.name());
        output::json::write(&whole, file).map_err(exit::io("write the table"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        let view = View::new(args.sort);
        let lines = view.lines(&now, None, &source.name());
        let text: String = lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect();
        sink::print(&text).map_err(exit::io("print the table"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn live(source: &mut Source, args: &TopArgs) -> CommandResult {
    let mut signals = Signals::listen(Some(SIGHUP)).map_err(exit::system("listen for signals"))?;
    let mut view = View::new(args.sort);
    let mut before = None;
    let mut now = source.look()?;
    let mut screen = Screen::enter().map_err(exit::system("set the terminal up"))?;
    let asked = Duration::from_secs(args.interval);
    while !signals.stops() {
        let lines = view.lines(&now, before.as_ref(), &source.name());
        screen.draw(&lines).map_err(exit::io("draw"))?;
        match screen.key(&mut signals, source.pause(asked)).map_err(exit::system("wait"))? {
            Some(b'q') => break,
            Some(key) => view.take(key),
            None if view.is_paused => {}
            None => before = Some(std::mem::replace(&mut now, source.look()?)),
        }
    }
    Ok(ExitCode::SUCCESS)
}
