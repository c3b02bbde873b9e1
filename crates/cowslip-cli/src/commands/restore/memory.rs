//! Restores an image to this process' memory, by any strategy.

use std::path::Path;

use clap::ValueEnum;
use cowslip::image::{
    Image, OnDamage, RestoreOptions, Restored, Standalone, StandaloneMode, Strategy, Via,
};
use cowslip::units::VirtRange;
use cowslip::{Error, ErrorKind, Place};

/// The way to restore an image.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StrategyArg {
    /// An arena at once; touched chunks first, then recorded ones, then the rest
    Hybrid,
    /// An arena, after everything was read
    Eager,
    /// The file mapped privately: not checked, and needed as long as the memory lives
    Map,
    /// The same, with all of it in the page tables from the start
    Populate,
    /// Anonymous memory, 4 KiB copied at each first touch
    #[value(name = "uffd-copy-4k")]
    UffdCopy4k,
    /// Anonymous memory, 2 MiB copied at each first touch
    #[value(name = "uffd-copy-2m")]
    UffdCopy2m,
    /// Anonymous memory, 2 MiB moved in at each first touch
    UffdMove,
    /// All of it in memory on huge pages, mapped privately from there
    Resident,
}

impl StrategyArg {
    /// The library's strategy, if that makes an arena; otherwise its standalone mode.
    fn in_arena(self) -> Result<Strategy, StandaloneMode> {
        Err(match self {
            Self::Hybrid => return Ok(Strategy::Hybrid),
            Self::Eager => return Ok(Strategy::Eager),
            Self::Map => StandaloneMode::Map,
            Self::Populate => StandaloneMode::Populate,
            Self::UffdCopy4k => StandaloneMode::UffdCopy4k,
            Self::UffdCopy2m => StandaloneMode::UffdCopy2m,
            Self::UffdMove => StandaloneMode::UffdMove,
            Self::Resident => StandaloneMode::Resident,
        })
    }
}

/// Memory with an image's content.
#[derive(Debug)]
pub(super) enum Memory {
    Arena(Restored),
    Standalone(Standalone),
}

impl Memory {
    pub(super) fn restore(
        image: &Image,
        arena: u32,
        strategy: StrategyArg,
        record: bool,
        via: Option<&Path>,
        on_damage: Option<OnDamage>,
        progress: cowslip::image::OnProgress<'_>,
    ) -> cowslip::Result<Self> {
        match strategy.in_arena() {
            Ok(strategy) => {
                let via = via.map_or(Via::Environment, |socket| Via::Server(socket.to_owned()));
                let options = RestoreOptions {
                    strategy,
                    record,
                    via,
                    on_damage,
                    ..RestoreOptions::default()
                };
                image.restore(arena, &options, progress).map(Self::Arena)
            }
            Err(_) if via.is_some() => Err(Error::new(ErrorKind::Usage, "restore an image")
                .because("only --strategy hybrid or eager makes an arena of a server's memory")),
            Err(way) => image
                .restore_standalone(arena, way, Place::Anywhere, on_damage)
                .map(Self::Standalone),
        }
    }

    pub(super) fn range(&self) -> VirtRange {
        match self {
            Self::Arena(restored) => restored.arena().range(),
            Self::Standalone(apart) => apart.range(),
        }
    }
}
