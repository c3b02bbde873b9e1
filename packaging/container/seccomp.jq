# The default profile of container runtimes on x86-64 for a container without capabilities, and userfaultfd(2) in it:
#   jq -f seccomp.jq /usr/share/containers/seccomp.json > cowslip.json
# It has no conditions on capabilities and architectures left, which containerd does not read.
{
  defaultAction,
  defaultErrnoRet,
  architectures: ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
  syscalls: ([
    .syscalls[]
    | select(
        (.includes.caps // []) == []
        and (.includes.arches // ["amd64"] | index("amd64"))
        and (.excludes.arches // [] | index("amd64") | not)
      )
    | .names -= ["userfaultfd"]
    | { names, action, args, errnoRet } | with_entries(select(.value != null))
  ] + [{ names: ["userfaultfd"], action: "SCMP_ACT_ALLOW" }])
}
