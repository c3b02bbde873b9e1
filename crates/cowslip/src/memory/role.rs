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
