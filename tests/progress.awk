# Of what tests say: which file of tests runs, how it ended, what was skipped, what failed and why.

function show(line) { print line; fflush() }

/^part: ended$/ { exit }

# cargo's: `Running tests/NAME.rs (…)`, `Running unittests src/lib.rs (target/release/deps/NAME-HASH)`, `Doc-tests CRATE`.
/^ +Running / {
  name = $2
  if (name == "unittests") { name = $4; sub(/.*\/deps\//, "", name); sub(/-[0-9a-f]+\)$/, "", name) }
  sub(/^tests\//, "", name); sub(/\.rs$/, "", name)
  why = ""
}
/^ +Doc-tests / { name = "examples of " $2; why = "" }

# A panic may be what a test wants: it is shown where a test failed.
/panicked at/ { lines = 2 }
lines > 0 { why = why "    " $0 "\n"; lines-- }
/^test .* FAILED$/ { why = why "    " $0 "\n" }
/^test result:.* 0 filtered out/ {
  show(sprintf("  %-36s %5d passed, %d failed %9s", name, $4, $6, $NF))
  if ($6 > 0) { show(why) }
}

# Of the build and of the other suites.
/^SKIPPED:/ || /^FAILED/ || /^error/ || /^peers: / || /^adversary: / || /^soak: / || /^fuzz: / { show("  " $0) }
/^(programs|ecosystem|cpython|stress-ng|postgres|redis): / || /^all  / { show("  " $0) }
