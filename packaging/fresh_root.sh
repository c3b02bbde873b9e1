# Sourced by packaging/test and packaging/container/test: roots of a Debian as its installer leaves it, with systemd, a
# compiler, CMake and Redis.

root_packages=gcc,libc6-dev,pkg-config,cmake,make,redis-server,systemd-sysv,dbus
# One with other packages has another name.
root_image=$PWD/target/packages-root-$(md5sum <<<"$root_packages" | cut -c1-8).tar

# Once: from where this machine's own apt takes its packages.
make_root() {
  [ ! -s "$root_image" ] || return 0
  local mirror suite components folder=$work/debootstrap
  read -r mirror suite < <(apt_sources '$(REPO_URI) $(RELEASE)')
  components=$(apt_sources '$(COMPONENT)' | paste -sd,)
  if ! debootstrap --variant=minbase --components="$components" \
    --include="$root_packages" "$suite" "$folder" "$mirror" >"$work/said" 2>&1; then
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

# Boots a root with systemd, runs a script there and shuts it down. The root has a userfaultfd device of its own, and the
# kernel's shmem_enabled is `advise` meanwhile, as an administrator of the host would have it.
booted() { # ROOT SCRIPT NAME=VALUE...
  local root=$1 script=$2 trial=$1/opt/trial status=0
  shift 2
  mkdir -p "$trial" "$root/etc/systemd/system/multi-user.target.wants"
  install -m755 "$script" "$trial/script"
  cat >"$root/etc/systemd/system/trial.service" <<END
[Unit]
After=redis-server.service

[Service]
Type=oneshot
Environment=$*
ExecStart=/bin/sh -c '/opt/trial/script >/opt/trial/said 2>&1; echo \$\$? >/opt/trial/status'
ExecStopPost=/bin/systemctl --no-block poweroff
END
  ln -sf ../trial.service "$root/etc/systemd/system/multi-user.target.wants/trial.service"
  # As the package's udev rule has it.
  mknod -m 660 "$work/userfaultfd" c $((0x$(stat -c %t /dev/userfaultfd))) $((0x$(stat -c %T /dev/userfaultfd)))
  chgrp "$(sed -n 's/^cowslip:[^:]*:\([0-9]*\):.*/\1/p' "$root/etc/group")" "$work/userfaultfd"
  # Not local: the trap is of the subshell that each check runs in.
  shmem=/sys/kernel/mm/transparent_hugepage/shmem_enabled
  was=$(sed 's/.*\[\(.*\)\].*/\1/' "$shmem")
  trap 'echo "$was" >"$shmem"' EXIT
  echo advise >"$shmem"
  timeout 300 systemd-nspawn --quiet --boot --register=no --keep-unit --console=pipe --directory="$root" \
    --bind="$work/userfaultfd:/dev/userfaultfd" </dev/null || status=$?
  cat "$trial/said"
  [ "$status" = 0 ] && status=$(cat "$trial/status")
  rm -rf "$trial" "$work/userfaultfd" "$root"/etc/systemd/system/{trial.service,multi-user.target.wants/trial.service}
  return "$status"
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
