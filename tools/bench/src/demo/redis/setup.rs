//! The ways to run the same unmodified `redis-server`.

use std::ffi::OsString;
use std::path::Path;

/// The name of the setup that others are compared with.
pub(crate) const STOCK: &str = "stock-4k";
pub(crate) const STOCK_THP: &str = "stock-thp";
pub(crate) const STOCK_MTHP: &str = "stock-mthp-64k";
pub(crate) const COWSLIP: &str = "cowslip";
/// Runs like a service: as an ordinary user that may open a userfaultfd.
pub(crate) const COWSLIP_USER: &str = "cowslip-user";

/// Settings that make malloc request huge pages: jemalloc as Debian links it, jemalloc as Redis bundles it, and glibc.
const MALLOC_WITH_THP: [(&str, &str); 3] = [
    ("MALLOC_CONF", "thp:always"),
    ("JE_MALLOC_CONF", "thp:always"),
    ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
];

/// `nobody`.
const USER: u32 = 65534;

/// Runs a command as an ordinary user with a device of its own, like `cowslip setup` for a service. The user sees it in
/// place of the system's, which stays as it is.
const AS_USER: &str = r#"
user=$1; shift; device=/dev/userfaultfd; place=$(mktemp -d) &&
mount -t tmpfs -o size=64k,mode=755 cowslip-bench "$place" &&
mknod -m 600 "$place/device" c 0x$(stat -c %t $device) 0x$(stat -c %T $device) &&
chown "$user:$user" "$place/device" && mount --bind "$place/device" $device &&
umount -l "$place" && rmdir "$place" &&
exec setpriv --reuid="$user" --regid="$user" --clear-groups -- "$@""#;

/// One way to run `redis-server`: the additions to its command line and environment.
#[derive(Debug, Clone)]
pub(crate) struct ServerSetup {
    /// Its name in the report.
    pub(crate) name: &'static str,
    /// Its name for people: alone, and in a sentence about stock Redis without it.
    pub(crate) title: &'static str,
    pub(crate) with: &'static str,
    /// The words before `redis-server`.
    pub(crate) prefix: Vec<OsString>,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// The run stops if the filled server has no huge pages.
    pub(crate) needs_huge_pages: bool,
    /// The user that runs the server, if it is another.
    pub(crate) user: Option<u32>,
    /// The kernel gives out pages of 64 KiB while the server is filled and measured.
    pub(crate) has_mthp: bool,
    /// Each child that saves becomes `SCHED_IDLE` once it exists.
    pub(crate) has_idle_children: bool,
}

impl ServerSetup {
    /// Redis as it comes: it declines huge pages.
    pub(crate) fn stock_4k() -> Self {
        Self {
            name: STOCK,
            title: "stock",
            with: "",
            prefix: Vec::new(),
            arguments: &[],
            environment: &[],
            needs_huge_pages: false,
            user: None,
            has_mthp: false,
            has_idle_children: false,
        }
    }

    /// Redis with the huge pages that the kernel and its allocator offer.
    pub(crate) fn stock_thp() -> Self {
        Self {
            name: STOCK_THP,
            title: "stock with THP",
            with: "with THP",
            arguments: &["--disable-thp", "no"],
            environment: &MALLOC_WITH_THP,
            needs_huge_pages: true,
            ..Self::stock_4k()
        }
    }

    /// Redis that takes pages of 64 KiB, with a kernel that gives them to every program.
    pub(crate) fn stock_mthp() -> Self {
        Self {
            name: STOCK_MTHP,
            title: "stock with pages of 64 KiB",
            with: "with pages of 64 KiB",
            arguments: &["--disable-thp", "no"],
            has_mthp: true,
            ..Self::stock_4k()
        }
    }

    /// Redis as it comes, and a script beside it that makes its saving children idle.
    pub(crate) fn stock_idle_child() -> Self {
        Self {
            name: "stock-4k-idle-child",
            title: "stock, idle child",
            with: "with an idle child",
            has_idle_children: true,
            ..Self::stock_4k()
        }
    }

    /// Redis under `cowslip run`.
    pub(crate) fn cowslip(command: &Path) -> Self {
        let prefix = vec![command.into(), "run".into(), "--".into()];
        let (title, with) = ("Cowslip", "with Cowslip");
        Self { name: COWSLIP, title, with, prefix, ..Self::stock_4k() }
    }

    /// The same as an ordinary user.
    pub(crate) fn cowslip_user(command: &Path) -> Self {
        let user = USER.to_string();
        let words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", AS_USER, "sh"];
        let mut prefix: Vec<OsString> = words.map(Into::into).to_vec();
        prefix.extend([user.into(), command.into(), "run".into(), "--".into()]);
        let (title, with) = ("Cowslip, ordinary user", "with Cowslip as an ordinary user");
        let user = Some(USER);
        Self { name: COWSLIP_USER, title, with, prefix, user, ..Self::stock_4k() }
    }

    /// Cowslip with a saving child that gets a smaller share of the processor than the server.
    pub(crate) fn cowslip_child_share(command: &Path) -> Self {
        let prefix = vec![command.into(), "run".into(), "--child-share=25".into(), "--".into()];
        let (title, with) = ("Cowslip, --child-share=25", "with Cowslip and --child-share=25");
        Self { name: "cowslip-child-share", title, with, prefix, ..Self::stock_4k() }
    }
}
