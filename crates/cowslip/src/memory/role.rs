//! The part that a process has in an arena, and the reasons that hold up its thaw.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// May thaw.
    Owner,
    /// A forked child: reads a base that another process may own.
    Reader,
}

/// Reasons not to thaw frozen chunks, the strongest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// This process reads a base that another may own.
    Reader,
    /// Other parts of the kernel, or devices, know its page frames.
    Pinned,
    /// Page frames are in use by a device.
    Io,
    /// The owner asked for a pause.
    Paused,
}

/// The part of the frozen memory that children forked now would inherit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ForkInheritance {
    /// Nothing, and they are not readers.
    None,
    /// Perhaps a part: a change to one of the others failed half-way.
    Part,
    /// All of it, and they are readers.
    Whole,
}

/// The number of holds on an arena's page frames, and of waits for their end.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    pub(crate) now: usize,
    pub(crate) awaited: usize,
}

impl Holds {
    /// True if frames must stay where they are.
    pub(crate) fn any(&self) -> bool {
        self.now > 0
    }
}
