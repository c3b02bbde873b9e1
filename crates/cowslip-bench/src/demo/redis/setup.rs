//! The ways to run the same unmodified `redis-server`.

use std::ffi::OsString;
use std::path::Path;

/// The name of the setup that is measured against.
pub(crate) const STOCK: &str = "stock-4k";
pub(crate) const COWSLIP: &str = "cowslip";

/// What makes malloc ask for huge pages: jemalloc as Debian links it, jemalloc as Redis bundles
/// it, and glibc.
const MALLOC_WITH_THP: [(&str, &str); 3] = [
    ("MALLOC_CONF", "thp:always"),
    ("JE_MALLOC_CONF", "thp:always"),
    ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
];

/// One way to run `redis-server`: what its command line and environment have more.
#[derive(Debug, Clone)]
pub(crate) struct ServerSetup {
    pub(crate) name: &'static str,
    /// What stands before `redis-server`.
    pub(crate) prefix: Vec<OsString>,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// It is pointless to go on when the filled server has no huge pages.
    pub(crate) needs_huge_pages: bool,
}

impl ServerSetup {
    /// Redis as it comes: it declines huge pages.
    pub(crate) fn stock_4k() -> Self {
        Self {
            name: STOCK,
            prefix: Vec::new(),
            arguments: &[],
            environment: &[],
            needs_huge_pages: false,
        }
    }

    /// Redis with the huge pages that the kernel and its allocator offer.
    pub(crate) fn stock_thp() -> Self {
        Self {
            name: "stock-thp",
            arguments: &["--disable-thp", "no"],
            environment: &MALLOC_WITH_THP,
            needs_huge_pages: true,
            ..Self::stock_4k()
        }
    }

    /// Redis under `cowslip run`, its saving child in less of a hurry than the server.
    pub(crate) fn cowslip(command: &Path) -> Self {
        let prefix = vec![command.into(), "run".into(), "--child-share=25".into(), "--".into()];
        Self { name: COWSLIP, prefix, ..Self::stock_4k() }
    }
}
