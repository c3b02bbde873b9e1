#!/bin/bash
# In a fresh root: a program that forks and an ordinary user have what COWSLIP brings. DOCTOR is its exit code outside.
set -euo pipefail
cd /tmp

fail() { echo "$*"; exit 1; }

in_its_place() {
  local code=0
  "$COWSLIP" doctor >doctor.txt || code=$?
  [ "$code" = "$DOCTOR" ] || fail "doctor: exit code $code, outside $DOCTOR: $(cat doctor.txt)"
  grep -q 'run a program that forks' doctor.txt || fail "doctor: $(cat doctor.txt)"
  local said
  said=$("$COWSLIP" run --quiet -- true 2>&1) || fail "run -- true: exit code $?: $said"
  [ -z "$said" ] || fail "run -- true: it said $said"
  preloads "$COWSLIP"
}

# preloads COMMAND...: both libraries are loaded, where that is wanted without userfaultfd too.
preloads() {
  "$@" run --without-userfaultfd --backing base -- cat /proc/self/maps >maps 2>&1 || fail "$*: $?: $(cat maps)"
  grep -q '/libcowslip_preload.so$' maps && grep -q '/libcowslip_malloc.so$' maps || fail "$*: $(cat maps)"
}

ordinary_user() {
  mkdir -p home
  chown 65534:65534 home
  local user=(setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp/home)
  local binary=$COWSLIP
  # What is in root's home nobody else can execute.
  if ! "${user[@]}" test -x "$binary"; then
    cp "$COWSLIP" home/cowslip
    binary=/tmp/home/cowslip
  fi
  preloads "${user[@]}" "$binary"
}

redis() { redis-cli -s /tmp/redis.sock "$@"; }

# begin COMMAND...: a server that is ready.
begin() {
  "$@" --port 0 --unixsocket /tmp/redis.sock --dir /tmp --save '' --enable-debug-command yes >>redis.log 2>&1 &
  server=$!
  until [ "$(redis ping 2>/dev/null)" = PONG ]; do
    kill -0 "$server" || fail "redis-server: $(cat redis.log)"
    sleep 0.05
  done
}

# A Redis saves under Cowslip what a stock Redis reads.
forks() {
  begin "$COWSLIP" run --report report.json -- redis-server
  redis debug populate 200000 key 100 >/dev/null
  local digest
  digest=$(redis debug digest)
  redis bgsave >/dev/null
  while [[ $(redis info persistence) == *rdb_bgsave_in_progress:1* ]]; do sleep 0.05; done
  [[ $(redis info persistence) == *rdb_last_bgsave_status:ok* ]] || fail "bgsave: $(cat redis.log)"
  redis shutdown nosave
  wait "$server"
  grep -Eq '"freezes": ?[1-9]' report.json || fail "it was not helped: $(cat report.json)"
  begin redis-server
  [ "$(redis debug digest)" = "$digest" ] || fail "the saved keys differ"
  redis shutdown nosave
  wait "$server"
}

# The example in C, as its first lines say to build it.
c_example() {
  cc -Wall -Werror "$1" $(pkg-config --cflags --libs cowslip) -lpthread -o store
  printf 'set colour yellow\nset name cowslip\nsave\nwait\nquit\n' | ./store image >/dev/null
  local said
  said=$(printf 'get name\ncount\nquit\n' | ./store image)
  [ "$said" = $'cowslip\n2' ] || fail "the store said $said"
}

in_its_place
ordinary_user
if [ "$DOCTOR" = 0 ]; then
  forks
else
  echo "SKIPPED: a Redis under Cowslip in a fresh root: the doctor says that it does not work in full here"
fi
example=$(dirname "$(dirname "$COWSLIP")")/share/doc/cowslip/examples/store.c
# `cargo install` installs programs only.
[[ $COWSLIP == */.cargo/bin/* ]] || c_example "$example"
