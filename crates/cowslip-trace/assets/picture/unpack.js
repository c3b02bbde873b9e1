// The trace as it is embedded: base64 of a length, JSON tables and columns of small numbers, each of them as zlib.

async function unpack(text) {
  const answer = await fetch("data:application/octet-stream;base64," + text);
  const packed = await answer.arrayBuffer();
  let at = 4;
  const next = async size => {
    const plain = new Blob([new Uint8Array(packed, at, size)]).stream().pipeThrough(new DecompressionStream("deflate"));
    at += size;
    return new Uint8Array(await new Response(plain).arrayBuffer());
  };
  const tables = JSON.parse(new TextDecoder().decode(await next(new DataView(packed).getUint32(0, true))));
  const columns = {};
  for (const [name, size] of tables.columns) columns[name] = await next(size);
  return { ...tables, faults: faultsOf(columns, tables), bars: barsOf(columns, tables) };
}

// Reads numbers of seven bits a byte, the least significant first.
function numbers(bytes) {
  let at = 0;
  return () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
}

// The sign is in the lowest bit.
const signed = value => value % 2 ? -(value + 1) / 2 : value / 2;

// Page numbers and low bits apart: an address may need more than the 53 bits that a number has.
function faultsOf(columns, tables) {
  const count = tables.fault_count;
  const faults = {
    count,
    time: new Float64Array(count), page: new Float64Array(count), low: new Uint16Array(count),
    space: new Uint32Array(count), thread: new Uint32Array(count), group: new Uint32Array(count),
    class: columns.class, kind: columns.class.map(it => it & 15), flags: columns.flags, latency: new Uint32Array(count),
    stack: new Uint32Array(count), ip: new Uint32Array(count),
  };
  const next = Object.fromEntries(Object.keys(columns).map(name => [name, numbers(columns[name])]));
  const pages = new Float64Array(tables.groups.length);
  let time = 0;
  for (let i = 0; i < count; i++) {
    faults.time[i] = time += next.time();
    const group = faults.group[i] = next.group();
    faults.page[i] = pages[group] += signed(next.page());
    faults.low[i] = columns.low[2 * i] + 256 * columns.low[2 * i + 1];
    faults.space[i] = next.space();
    faults.thread[i] = next.thread();
    faults.latency[i] = next.latency();
    faults.stack[i] = next.stack();
    faults.ip[i] = next.ip();
  }
  return faults;
}

// In the order in which they began.
function barsOf(columns, tables) {
  const count = tables.bar_count;
  const bars = {
    count,
    start: new Float64Array(count), end: new Float64Array(count), offset: new Float64Array(count),
    from: new Float64Array(count), to: new Float64Array(count),
    space: new Uint32Array(count), group: new Uint32Array(count),
  };
  const next = Object.fromEntries(Object.keys(columns).map(name => [name, numbers(columns[name])]));
  let start = 0, from = 0;
  for (let i = 0; i < count; i++) {
    bars.start[i] = start += signed(next.bar_start());
    bars.end[i] = start + next.bar_pages();
    bars.from[i] = from += signed(next.bar_from());
    bars.to[i] = from + next.bar_ns();
    bars.space[i] = next.bar_space();
    bars.group[i] = next.bar_group();
    bars.offset[i] = next.bar_offset();
  }
  return bars;
}
