// Which faults are meant: by window, brush and filters.

// The first fault at or after a time; faults are in its order.
function firstAt(time) {
  const times = trace.faults.time;
  let low = 0, high = times.length;
  while (low < high) {
    const middle = low + high >> 1;
    if (times[middle] < time) low = middle + 1; else high = middle;
  }
  return low;
}

// Bits for the filters that a fault may fail. A table's own filter does not narrow the table.
const FAILS = { kind: 1, group: 2, stack: 4, thread: 8, pattern: 16, space: 32 };

// Whether a fault is of a pattern. Its class is the kind (four bits), whether a page came, whether the kernel took it.
const CLASSES = 64;
const isOfPattern = (pattern, group, it) =>
  (pattern.group === null || pattern.group === group) && (pattern.kind === null || pattern.kind === (it & 15))
  && (!pattern.is_of_arrivals || it & 16) && (!pattern.is_of_kernel || it & 32);

// The filters that each fault fails, 0 if none; found again only when a filter changes.
function findFailures() {
  const { count, kind, group, stack, thread, space, class: classes } = trace.faults;
  const { hidden, chosen } = view;
  const pattern = chosen.pattern !== null && trace.patterns[chosen.pattern];
  const isHidden = Uint8Array.from(trace.kinds, (_, kind) => hidden.has(kind) ? FAILS.kind : 0);
  const failed = view.failed ??= new Uint8Array(count);
  for (let i = 0; i < count; i++) {
    failed[i] = isHidden[kind[i]]
      | (chosen.group !== null && group[i] !== chosen.group ? FAILS.group : 0)
      | (chosen.stack !== null && stack[i] !== chosen.stack ? FAILS.stack : 0)
      | (chosen.thread !== null && thread[i] !== chosen.thread ? FAILS.thread : 0)
      | (chosen.space !== null && space[i] !== chosen.space ? FAILS.space : 0)
      | (pattern && !isOfPattern(pattern, group[i], classes[i]) ? FAILS.pattern : 0);
  }
}

// Calls `take(index, failed)` for each fault of a rectangle.
function eachFault({ x, y }, take) {
  const { places, failed } = view;
  const end = firstAt(x[1]);
  for (let i = firstAt(x[0]); i < end; i++) {
    if (places[i] >= y[0] && places[i] <= y[1]) take(i, failed[i]);
  }
}
