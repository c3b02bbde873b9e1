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

# stores COMMAND...: the example in C keeps what it saves.
stores() {
  local said
  rm -f image
  printf 'set colour yellow\nset name cowslip\nsave\nwait\nquit\n' | "$@" image >/dev/null
  said=$(printf 'get name\ncount\nquit\n' | "$@" image)
  [ "$said" = $'cowslip\n2' ] || fail "$*: the store said $said"
}

# As its first lines say to build it.
c_example() { # FOLDER
  cc -Wall -Werror "$1/store.c" $(pkg-config --cflags --libs cowslip) -lpthread -o store
  stores ./store
}

# CMake builds it with each library, finds the shared one again when the program runs, and refuses other versions.
cmake_example() { # FOLDER
  { cmake -S "$1" -B build -DCMAKE_C_FLAGS='-Wall -Werror' && cmake --build build; } >cmake.txt 2>&1 \
    || fail "cmake: $(cat cmake.txt)"
  needed build/store | grep -Fx libcowslip.so.0 || fail "build/store needs $(needed build/store)"
  ! needed build/store-static | grep cowslip || fail "build/store-static needs libcowslip"
  stores env -u LD_LIBRARY_PATH build/store
  stores env -u LD_LIBRARY_PATH build/store-static
  local version
  for version in 0.0 9.0; do
    cp -r "$1" "$version"
    sed -i "s/find_package(cowslip [^ ]*/find_package(cowslip $version/" "$version/CMakeLists.txt"
    ! cmake -S "$version" -B "$version/build" >cmake.txt 2>&1 || fail "cmake: version $version is found"
    grep -q 'cowslip-config.cmake, version: [0-9]' cmake.txt || fail "cmake: version $version: $(cat cmake.txt)"
  done
}

needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

in_its_place
ordinary_user
if [ "$DOCTOR" = 0 ]; then
  forks
else
  echo "SKIPPED: a Redis under Cowslip in a fresh root: the doctor says that it does not work in full here"
fi
examples=$(dirname "$(dirname "$COWSLIP")")/share/doc/cowslip/examples
# `cargo install` installs programs only.
if [[ $COWSLIP != */.cargo/bin/* ]]; then
  c_example "$examples"
  cmake_example "$examples"
fi
