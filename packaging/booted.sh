#!/bin/bash
# In a root that systemd has booted, with the package installed: the units and `cowslip setup`, as docs/guides/fleet.md
# and docs/setup.md tell an operator to use them. GUIDE has the first page's own promote.toml and commands. Says what goes
# wrong, exit 1.
set -euo pipefail

fail() {
  echo "$*"
  systemctl status --no-pager --full cowslip-promote redis-server 2>&1 | tail -40
  exit 1
}

# until_true COMMAND...: it becomes true within 20 seconds.
until_true() {
  local end=$((SECONDS + 20))
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.1
  done
}

metrics() {
  exec 3<>/dev/tcp/127.0.0.1/9464 || return 1
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
  cat <&3
} 2>/dev/null

has_metrics() { metrics | grep -q '^cowslip_promote_coverage_ratio'; }

# The page's commands, one after another, beside its promote.toml.
the_guide() {
  local command count=0
  cd "$GUIDE"
  sudo() { "$@"; }
  # It is installed.
  apt() { [ "$1" = install ]; }
  # It would go on until it is interrupted.
  cowslip() { command cowslip "$@" --once; }
  while read -r command <&4; do
    until_true eval "$command" >/opt/said 2>&1 || fail "the guide: $command: $(cat /opt/said)"
    count=$((count + 1))
  done 4<commands
  [ "$count" -gt 2 ] || fail "the guide has $count commands"
  unset -f sudo apt cowslip
}

the_daemon() {
  systemctl enable --now --quiet cowslip-promote || fail "the package's configuration: the unit does not start"
  until_true has_metrics || fail "the package's configuration: no metrics"
  [ "$(cowslip promote top --once --metrics 127.0.0.1:9464 2>&1 | wc -l)" -gt 0 ] || fail "promote top says nothing"
  systemctl disable --now --quiet cowslip-promote

  the_guide
  cmp -s "$GUIDE/promote.toml" /etc/cowslip/promote.toml || fail "the guide's configuration is not in its place"
  until_true has_metrics || fail "the guide's configuration: no metrics"
  systemctl reload cowslip-promote || fail "the guide's configuration: it is not read again"

  sed '1i metrics_file = "/run/cowslip/promote.prom"' "$GUIDE/promote.toml" >/etc/cowslip/promote.toml
  systemctl restart cowslip-promote || fail "metrics in a file: the unit does not start"
  until_true test -s /run/cowslip/promote.prom || fail "metrics in a file: there is no file"

  # What cannot work fails where the operator looks.
  sed '1i metrics_file = "/var/lib/promote.prom"' "$GUIDE/promote.toml" >/etc/cowslip/promote.toml
  ! systemctl restart cowslip-promote 2>/dev/null || fail "a folder that the unit cannot write: it started"
  journalctl -u cowslip-promote --no-pager | grep -q 'cannot write in /var/lib' || fail "the journal does not say why"
  # Root's own shell could write there.
  ! cowslip promote --check-config --config /etc/cowslip/promote.toml 2>/tmp/check || fail "--check-config takes root's rights"
  grep -q 'cowslip-promote.service can write below /run/cowslip only' /tmp/check || fail "--check-config does not say why"
  rm /etc/cowslip/promote.toml
  systemctl reset-failed cowslip-promote
  ! systemctl restart cowslip-promote 2>/dev/null || fail "without a configuration: it started"
  systemctl disable --now --quiet cowslip-promote
}

# An image of the example in C, served by the unit.
the_server() {
  local socket=/run/cowslip-serve.socket
  mkdir /opt/image && cd /opt/image
  cc /usr/share/doc/cowslip/examples/store.c $(pkg-config --cflags --libs cowslip) -lpthread -o store
  printf 'set colour yellow\nsave\nwait\nquit\n' | ./store image >/dev/null
  ! systemctl is-active --quiet cowslip-serve.socket || fail "nothing is to be served, and there is a socket"
  echo 'IMAGES="/opt/image/image"' >/etc/cowslip/serve.env
  systemctl enable --now --quiet cowslip-serve.socket || fail "the socket does not start"
  cowslip restore image --dump 0:2M >/opt/read
  cowslip restore image --via "$socket" --dump 0:2M | cmp - /opt/read || fail "what is served differs"
  # A client that gets no answer reads the file.
  cowslip serve --metrics >/opt/said || fail "no server: $(journalctl -u cowslip-serve --no-pager | tail -5)"
  grep -Eq '^cowslip_serve_(templates|lent)_total [1-9]' /opt/said || fail "it served nothing: $(cat /opt/said)"
  # Before Linux 6.15 no tmpfs can be handed out for reading only.
  if [ "$(printf '%s\n' 6.15 "$(uname -r)" | sort -V | head -1)" = 6.15 ]; then
    ! journalctl -u cowslip-serve --no-pager | grep -q 'kept in memfds' || fail "it may not make its own tmpfs"
  fi
  systemctl disable --now --quiet cowslip-serve.socket cowslip-serve.service
  rm /etc/cowslip/serve.env
  cd / && rm -r /opt/image
}

# What setup may change, and gives back.
prepared() {
  find /etc -name '*cowslip*' -not -path '/etc/cowslip*'
  getent group cowslip || true
  stat -c '%a %U %G' /dev/userfaultfd
}

redis() { redis-cli "$@" 2>/dev/null; }

answers() { [ "$(redis ping)" = PONG ]; }

a_service() {
  systemctl start redis-server && until_true answers || fail "redis-server does not start"
  prepared >/opt/trial/before
  cowslip setup redis-server || fail "setup: exit code $?"
  systemctl restart redis-server && until_true answers || fail "redis-server does not start by cowslip run"
  redis eval 'for i = 1, 200000 do redis.call("set", "key:" .. i, string.rep("v", 200)) end' 0 >/dev/null
  [ "$(redis bgsave)" = "Background saving started" ] || fail "bgsave"
  saved() { [[ $(redis info persistence) == *rdb_bgsave_in_progress:0* ]]; }
  until_true saved || fail "the save does not end"
  [[ $(redis info persistence) == *rdb_last_bgsave_status:ok* ]] || fail "the save failed"
  local pid said
  pid=$(systemctl show -p MainPID --value redis-server)
  said=$(cowslip status "$pid") || fail "status: $said"
  grep -Eq "^ *so far +[1-9]" <<<"$said" || fail "it was not frozen: $said"
  cowslip setup --undo || fail "setup --undo: exit code $?"
  systemctl restart redis-server && until_true answers || fail "redis-server does not start after --undo"
  prepared >/opt/trial/after
  diff /opt/trial/before /opt/trial/after || fail "setup --undo left something"
}

the_daemon
the_server
a_service
