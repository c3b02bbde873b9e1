# Sourced by packaging/test: roots of a Debian as its installer leaves it, with a compiler and Redis.

root_image=$PWD/target/packages-root.tar

# Once: from where this machine's own apt takes its packages.
make_root() {
  [ ! -s "$root_image" ] || return 0
  local mirror suite components folder=$work/debootstrap
  read -r mirror suite < <(apt_sources '$(REPO_URI) $(RELEASE)')
  components=$(apt_sources '$(COMPONENT)' | paste -sd,)
  if ! debootstrap --variant=minbase --components="$components" \
    --include=gcc,libc6-dev,pkg-config,redis-server "$suite" "$folder" "$mirror" >"$work/said" 2>&1; then
    tail -5 "$work/said" >&2
    echo "packaging/test: debootstrap could not make a root of $suite" >&2
    return 1
  fi
  mkdir -p "$(dirname "$root_image")"
  tar -C "$folder" -cf "$root_image.part" .
  mv "$root_image.part" "$root_image"
  rm -rf --one-file-system "$folder"
}

apt_sources() { # FORMAT
  local codename
  codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
  apt-get indextargets --format "$1" 'Created-By: Packages' "Release: $codename" | sort -u
}

fresh() { # FOLDER
  mkdir -p "$1"
  tar -C "$1" -xpf "$root_image"
}

# Runs a command in a root, in namespaces that take its mounts and its processes with them.
within() { # ROOT COMMAND...
  unshare --mount --pid --fork --kill-child sh -c '
    set -e
    root=$1
    shift
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
      chroot "$root" "$@"
  ' within "$@"
}

# What is in a root: each name, and what the files hold that packages share. Not logs, nor what apt and dpkg keep anew.
contents() { # ROOT
  (
    cd "$1"
    find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./tmp -o -path ./var/log \
      -o -path ./var/cache/apt -o -path ./var/lib/apt \) -prune -o ! -name '*-old' -print | sort
    sha256sum etc/passwd etc/group etc/shadow etc/gshadow
  )
}
