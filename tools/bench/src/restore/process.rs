//! One restore, in a process that does nothing else: its times and the state after it.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cowslip::image::{Image, RestoreOptions, Restored, SaveOptions, save};
use cowslip::units::{ByteCount, VirtRange};
use cowslip::{Arena, Place, Template, TemplateClone};

use super::baselines::{Loaded, Prepared};
use super::method::RestoreMethod;
use super::observed::{Again, Observed, Work};
use super::sample::{View, place_of, prepare};
use super::state::State;
use super::{Error, Result, proceed, read, working_set};
use crate::error::during;
use crate::host::{self, Span};
use crate::interrupt::Interrupt;

/// Time until a hybrid restore is complete.
const PATIENCE: Duration = Duration::from_secs(600);

/// The image and the method, from the bench to the process that it starts.
#[derive(clap::Args, Debug)]
pub struct ProcessArgs {
    image: PathBuf,
    /// Its content alone
    #[arg(long)]
    flat: PathBuf,
    /// Which strategy, or which baseline
    #[arg(long)]
    method: RestoreMethod,
    /// Where the template is served that `resident` maps
    #[arg(long)]
    socket: Option<PathBuf>,
    #[arg(long)]
    cold: bool,
    #[arg(long, value_enum)]
    work: Work,
    /// Which order of the working set
    #[arg(long)]
    order: u32,
    #[arg(long)]
    record: bool,
}

enum Held {
    Arena(Restored),
    Clone(TemplateClone),
    /// The arena, and the address of its first memory.
    OfTemplate(Arena, usize),
    Baseline(Loaded),
}

/// `cowslip-bench restore-process`: returns the text that the bench that started it reads.
///
/// # Errors
/// [`Error::Failed`] if the restore is impossible.
pub fn run(args: &ProcessArgs) -> Result<String> {
    observe(args).map(|observed| serde_json::json!(observed).to_string())
}

fn observe(args: &ProcessArgs) -> Result<Observed> {
    let place = place_of(&Image::open(&args.image)?)?;
    let (source, prepared) = match args.method {
        RestoreMethod::Baseline(baseline) => {
            (&args.flat, baseline.prepare(&args.flat, place.len, args.cold)?)
        }
        _ => (&args.image, Prepared::Nothing),
    };
    prepare(source, args.cold)?;
    if !args.cold && args.method.is_of_template() {
        // Reads it, because the sources of the other methods were read a moment ago.
        let clone = Held::Clone(template(args)?.map(Place::Anywhere)?);
        read::read(View(clone.range(place)), 0);
    }
    let span = Span::begin()?;
    let room = ByteCount((place.len + place.len / 8) as u64);
    host::warm(room, &Interrupt::default())?;
    let touch_ns = span.end()?.touch_ns_per_page;
    let before = State::new(VirtRange::default(), source)?;
    let order = working_set::order(place.len, args.order);

    let began = Instant::now();
    let held = restore(args, prepared, place)?;
    let view = View(held.range(place));
    let setup_ns = began.elapsed().as_nanos() as f64;
    let first = working_set::random_page(place.len, args.order);
    let reading = (args.work == Work::Read).then(|| read::read(view, first));
    let touching = (args.work == Work::WorkingSet).then(|| working_set::touch(view, &order, began));
    if let Held::Arena(restored) = &held {
        if args.record {
            restored.finish_recording()?;
        }
        if !restored.wait(PATIENCE)? {
            return Err(Error::Failed(format!("it was not complete within {PATIENCE:?}")));
        }
    }
    if let Held::OfTemplate(arena, _) = &held
        && !arena.wait_live(PATIENCE)
    {
        return Err(Error::Failed(format!("it was no arena of its own within {PATIENCE:?}")));
    }
    let complete_ns = began.elapsed().as_nanos() as f64;
    let wrong_bytes = view.wrong_bytes();
    let state = State::new(view.0, source)?.since(&before);
    let again = match held {
        Held::Arena(restored) if args.work == Work::Read => {
            Some(save_again(&restored.into_arena(), args)?)
        }
        Held::OfTemplate(arena, _) => Some(save_again(&arena, args)?),
        _ => None,
    };
    Ok(Observed {
        setup_ns,
        reading,
        working_set: touching,
        complete_ns,
        wrong_bytes,
        state,
        again,
        touch_ns,
    })
}

fn restore(args: &ProcessArgs, prepared: Prepared, place: VirtRange) -> Result<Held> {
    Ok(match args.method {
        RestoreMethod::Arena(strategy) => {
            let options =
                RestoreOptions { strategy, record: args.record, ..RestoreOptions::default() };
            Held::Arena(Image::open(&args.image)?.restore(0, &options, &mut proceed)?)
        }
        RestoreMethod::Resident => Held::Clone(template(args)?.map(Place::Anywhere)?),
        RestoreMethod::ResidentArena => {
            let template = template(args)?;
            let arena = template.restore(template.arena_builder(Place::Anywhere)?)?;
            let first = arena.range().start + place.start;
            Held::OfTemplate(arena, first)
        }
        RestoreMethod::Baseline(baseline) => {
            Held::Baseline(baseline.load(prepared, &args.flat, place.len)?)
        }
    })
}

/// The template that the process that started this one serves.
fn template(args: &ProcessArgs) -> Result<Template> {
    let socket = args.socket.as_ref();
    let socket = socket.ok_or_else(|| Error::Failed("no template is served".to_owned()))?;
    let socket = UnixStream::connect(socket).map_err(during("connect to the template"))?;
    #[allow(unsafe_code)]
    // SAFETY: the process that sends is our parent.
    Ok(unsafe { Template::receive(&socket) }?)
}

impl Held {
    /// The range of the content.
    fn range(&self, place: VirtRange) -> VirtRange {
        let start = match self {
            Self::Arena(restored) => restored.arena().range().start + place.start,
            // The clone begins at the first memory that was handed out.
            Self::Clone(clone) => clone.range().start,
            Self::OfTemplate(_, first) => *first,
            Self::Baseline(loaded) => loaded.memory().range().start,
        };
        VirtRange::new(start, place.len)
    }
}

fn save_again(arena: &Arena, args: &ProcessArgs) -> Result<Again> {
    let began = Instant::now();
    let frozen = arena.freeze()?;
    let freeze_ns = began.elapsed().as_nanos() as f64;
    save(&[&frozen], &args.image, &SaveOptions::default(), &mut proceed)?;
    Ok(Again { freeze_ns, save_ns: began.elapsed().as_nanos() as f64 })
}
