//! Being written.

pub(crate) fn run(_: crate::args::DemoArgs) -> crate::exit::Answer {
    Err(crate::exit::Failure::new(crate::exit::USAGE, "not yet"))
}
