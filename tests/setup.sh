# Sourced by ./demo, ./test and .ci/run: installs what is missing where it can, else says what to do.

need_rust() {
  [ -n "${CARGO_HOME:-}" ] || export CARGO_HOME="$HOME/.cargo"
  command -v cargo >/dev/null || PATH="$CARGO_HOME/bin:$PATH"
  command -v cargo >/dev/null || { echo "cargo is missing: install Rust 1.89 or later (rustup.rs)" >&2; exit 3; }
  need_command cc gcc || exit 3
  need_command make make || exit 3 # builds jemalloc
}

can_install() { [ -z "${COWSLIP_NO_INSTALL:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# need_command COMMAND PACKAGE: 0 if the command is there in the end. Installs nothing if COWSLIP_NO_INSTALL is set.
need_command() {
  command -v "$1" >/dev/null && return 0
  if can_install; then
    echo "installing $2 for $1" >&2
    { apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2"; } \
      >/dev/null 2>&1 || true
  fi
  command -v "$1" >/dev/null && return 0
  echo "$1 is missing: as root, apt-get install $2" >&2
  return 1
}

# Where nothing mounted it, as root: recordings of every mapping are tested only with it.
mount_tracefs() {
  has_mounted=
  [ "$(id -u)" = 0 ] && ! [ -d /sys/kernel/tracing/events ] || return 0
  mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null && has_mounted=yes || true
}

give_tracefs_back() {
  [ -z "$has_mounted" ] || umount /sys/kernel/tracing
}
