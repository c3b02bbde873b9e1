// What is said about the fault or map under the pointer.

const NEAR = 9;

const hover = {
  create(parent, tip) {
    Object.assign(this, { parent, tip });
    const over = map.chart.over;
    const look = event => {
      this.at = event.buttons ? null : [event.offsetX, event.offsetY];
      this.pending ??= requestAnimationFrame(() => { this.pending = null; this.show(); });
    };
    over.addEventListener("pointermove", look);
    // A finger does not hover: it taps.
    over.addEventListener("click", look);
    over.addEventListener("pointerleave", () => { this.at = null; tip.hidden = true; });
  },

  show() {
    const { tip, at } = this;
    const found = at && (this.fault(...at) ?? this.bar(...at));
    tip.hidden = !found;
    if (!found) return;
    tip.replaceChildren(...found.map(line));
    const over = map.chart.over.getBoundingClientRect();
    const left = over.left + at[0], top = over.top + at[1];
    const fits = left + 16 + tip.offsetWidth < innerWidth;
    tip.style.left = Math.max(4, fits ? left + 16 : left - 16 - tip.offsetWidth) + "px";
    tip.style.top = Math.max(4, Math.min(top + 12, innerHeight - tip.offsetHeight - 4)) + "px";
  },

  // The nearest fault that is drawn, with how many more are as near.
  fault(x, y) {
    const { over } = map.chart;
    const perTime = over.clientWidth / (view.x[1] - view.x[0]);
    const perPlace = over.clientHeight / (view.y[1] - view.y[0]);
    const time = view.x[0] + x / perTime, place = view.y[1] - y / perPlace;
    let nearest, least = NEAR ** 2, near = 0;
    eachFault({ x: [time - NEAR / perTime, time + NEAR / perTime], y: [place - NEAR / perPlace, place + NEAR / perPlace] }, (i, failed) => {
      if (failed) return;
      const distance = ((trace.faults.time[i] - time) * perTime) ** 2 + ((view.places[i] - place) * perPlace) ** 2;
      if (distance > NEAR ** 2) return;
      near++;
      if (distance <= least) [nearest, least] = [i, distance];
    });
    return nearest === undefined ? undefined : faultLines(nearest, near - 1);
  },

  bar(x, y) {
    const { over } = map.chart;
    const time = view.x[0] + x / over.clientWidth * (view.x[1] - view.x[0]);
    const at = view.axis.at(view.y[1] - y / over.clientHeight * (view.y[1] - view.y[0]));
    const i = at ? barAt(at.band.space, at.page, time) : -1;
    if (i < 0) return undefined;
    const { start, end, from, to, group } = trace.bars;
    return [
      { title: trace.groups[group[i]].name },
      { name: "range", text: `${hex(start[i])} – ${hex(end[i])} (${size((end[i] - start[i]) * 4096)})` },
      { name: "mapped", text: `${duration(from[i])} – ${duration(to[i])}` },
    ];
  },
};

// The youngest bar at a page and time, by its number; -1 if there is none.
function barAt(wanted, page, time) {
  const { count, space, start, end, from, to } = trace.bars;
  for (let i = count - 1; i >= 0; i--) {
    if (from[i] <= time && time <= to[i] && start[i] <= page && page < end[i] && space[i] === wanted) return i;
  }
  return -1;
}

const ACCESS = [null, "read", "write", "execute"];
const SEVERITY = [null, "minor", "major"];
const MODE = [null, "by the kernel, for the program", "by the program"];
const HUGE = [null, "base page", "huge page"];

function faultLines(i, more) {
  const { time, page, low, space, thread, group, kind, flags, latency, stack, ip } = trace.faults;
  const { bars, groups } = trace;
  const bar = barAt(space[i], page[i], time[i]);
  const into = page[i] - bars.start[bar];
  const inMap = bar < 0 ? "" : ` + ${hex(into, low[i])} of ${size((bars.end[bar] - bars.start[bar]) * 4096)}`;
  const inFile = bar < 0 || groups[group[i]].tint !== "file" ? "" : `, file offset ${hex(bars.offset[bar] + into, low[i])}`;
  const flag = (names, at) => names[flags[i] >> at & 3];
  const { tid, pid, name } = trace.threads[thread[i]];
  const how = [flag(ACCESS, 0), flag(SEVERITY, 2), flag(HUGE, 6), flag(MODE, 4)].filter(Boolean).join(", ");
  const frames = stack[i] ? trace.stacks[stack[i] - 1].map(frame => trace.frames[frame]) : [trace.frames[ip[i]]];
  return [
    { title: trace.kinds[kind[i]], colour: palette.kinds[kind[i]] },
    { name: "address", text: hex(page[i], low[i]) },
    { name: "mapping", text: groups[group[i]].name + inMap + inFile },
    { name: "thread", text: `${name ?? "thread"} ${tid}` + (tid === pid ? "" : ` of process ${pid}`) },
    { name: "time", text: exactTime(time[i]) },
    latency[i] && { name: "latency", text: duration(latency[i] - 1) },
    how && { name: "how", text: how },
    ...frames.slice(0, 12).map((text, nth) => ({ name: nth ? "" : stack[i] ? "stack" : "at", text, isFrame: true })),
    frames.length > 12 && { name: "", text: `and ${frames.length - 12} more frames` },
    more > 0 && { name: "", text: `and ${whole(more)} more here` },
  ].filter(Boolean);
}

function line({ title, colour, name, text, isFrame }) {
  const element = document.createElement("div");
  if (title !== undefined) {
    element.className = "title";
    if (colour) element.style.setProperty("--c", colour);
    element.textContent = title;
    return element;
  }
  const label = document.createElement("span");
  label.textContent = name;
  const value = document.createElement("span");
  value.textContent = text;
  if (isFrame) value.className = "frame";
  element.append(label, value);
  return element;
}
