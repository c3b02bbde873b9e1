#!/bin/bash
# In a root that systemd has booted: two services set up, and the package upgraded, removed or purged. They start at the
# next boot, which is the next step's, and after a restart. Says what goes wrong, exit 1.
set -euo pipefail

services=(redis-server pages)

fail() {
  echo "$STEP: $*"
  systemctl status --no-pager --full "${services[@]}" 2>&1 | tail -40
  exit 1
}

# is_by SERVICE yes|no: it runs, under Cowslip or not.
is_by() {
  systemctl is-active --quiet "$1" || return 1
  local maps
  maps=$(cat "/proc/$(systemctl show -p MainPID --value "$1")/maps" 2>/dev/null) || return 1
  case $2 in
    yes) [[ $maps == */libcowslip_preload* ]] ;;
    no) [[ $maps != *cowslip* ]] ;;
  esac
}

run_by() { # yes|no
  local service end=$((SECONDS + 20))
  for service in "${services[@]}"; do
    until is_by "$service" "$1"; do
      [ "$SECONDS" -lt "$end" ] || fail "$service does not run, or not as wanted: under Cowslip $1"
      sleep 0.1
    done
  done
}

restarted() { # yes|no
  systemctl restart "${services[@]}" || fail "a service does not start again"
  run_by "$1"
}

prepared() {
  if [ ! -e /etc/systemd/system/pages.service ]; then
    printf '[Service]\nExecStart=/usr/bin/sleep infinity\nNoExecPaths=/\nExecPaths=/usr/bin/sleep /usr/lib /lib\n[Install]\n%s\n' \
      WantedBy=multi-user.target >/etc/systemd/system/pages.service
  fi
  systemctl enable --quiet --now "${services[@]}" || fail "they do not start"
  cowslip setup "${services[@]}" || fail "setup: exit code $?"
  restarted yes
}

has_no_drop_in() {
  ! ls /etc/systemd/system/*.service.d/cowslip.conf 2>/dev/null || fail "a drop-in stays"
}

install_package() { dpkg -i /opt/cowslip.deb >/opt/said 2>&1 || fail "dpkg -i: $(cat /opt/said)"; }

case $STEP in
  upgrade)
    prepared
    install_package
    restarted yes
    ;;
  remove)
    run_by yes
    apt-get remove -y cowslip >/opt/said 2>&1 || fail "apt-get remove: $(cat /opt/said)"
    has_no_drop_in
    restarted no
    install_package
    prepared
    apt-get remove -y cowslip >/opt/said 2>&1 || fail "apt-get remove: $(cat /opt/said)"
    ;;
  purge)
    run_by no
    install_package
    prepared
    apt-get purge -y cowslip >/opt/said 2>&1 || fail "apt-get purge: $(cat /opt/said)"
    has_no_drop_in
    ;;
  end) run_by no ;;
esac
