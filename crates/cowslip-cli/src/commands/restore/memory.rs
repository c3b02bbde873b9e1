//! Restores an image to this process' memory, by any strategy.

use std::path::Path;

use clap::ValueEnum;
use cowslip::image::{Image, MappedImage, OnDamage, RestoreOptions, Restored, Strategy, Via};
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
}

/// Memory with an image's content.
#[derive(Debug)]
pub(super) enum Memory {
    Arena(Box<Restored>),
    Mapped(MappedImage),
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
        let strategy = match strategy {
            StrategyArg::Hybrid => Strategy::Hybrid,
            StrategyArg::Eager => Strategy::Eager,
            StrategyArg::Map if via.is_some() => {
                return Err(Error::new(ErrorKind::Usage, "restore an image").because(
                    "only --strategy hybrid or eager makes an arena of a server's memory",
                ));
            }
            StrategyArg::Map => return image.map(arena, Place::Anywhere).map(Self::Mapped),
        };
        let via = via.map_or(Via::Environment, |socket| Via::Server(socket.to_owned()));
        let options =
            RestoreOptions { strategy, record, via, on_damage, ..RestoreOptions::default() };
        image.restore(arena, &options, progress).map(|restored| Self::Arena(Box::new(restored)))
    }

    pub(super) fn range(&self) -> VirtRange {
        match self {
            Self::Arena(restored) => restored.arena().range(),
            Self::Mapped(mapped) => mapped.range(),
        }
    }
}
