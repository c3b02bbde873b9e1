# Sourced by the suites.

result() { # outcome name
    printf '%s\t%s\n' "$1" "$2" >>"$PEERS_RESULTS"
}

# check NAME COMMAND...: a test that passes if the command succeeds.
check() {
    local name=$1 outcome=pass
    shift
    echo "== $name"
    ("$@") || { outcome=fail && echo "== FAILED ($?): $name"; }
    result $outcome "$name"
}

# same NAME EXPECTED COMMAND...: a test that passes if the command prints just that.
same() {
    local name=$1 expected=$2 printed outcome=pass
    shift 2
    echo "== $name"
    printed=$("$@") || outcome=fail
    [ "$printed" = "$expected" ] || { outcome=fail && echo "== expected $expected, got $printed"; }
    result $outcome "$name"
}

# As root: as another user, who may freeze by userfaultfd nevertheless. Else: as it is.
as_user() {
    [ "$(id -u)" = 0 ] || { "$@"; return; }
    setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all,+sys_ptrace,+sys_admin \
        --ambient-caps=-all,+sys_ptrace,+sys_admin -- "$@"
}
