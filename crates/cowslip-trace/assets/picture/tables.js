// The tables beside the chart: what the faults in the brush, or else in the window, have in common.

const ROWS = 40;

const tables = {
  create(parent) {
    const byName = name => index => trace[name][index].name;
    this.parts = [
      { name: "Patterns", dimension: "pattern", label: index => trace.patterns[index].sentence, more: index => trace.patterns[index].advice,
        count: counts => trace.patterns.map(pattern => {
          let sum = 0;
          counts.cells.forEach((count, at) => { if (count && isOfPattern(pattern, at / CLASSES | 0, at % CLASSES)) sum += count; });
          return sum;
        }) },
      { name: "Mappings", dimension: "group", label: byName("groups"), tip: index => trace.groups[index].detail },
      { name: "Stacks", dimension: "stack", label: stackLabel, tip: index => stackFrames(index).join("\n"), isCode: true },
      { name: "Threads", dimension: "thread", label: index => threadLabel(trace.threads[index]) },
    ];
    for (const part of this.parts) {
      part.body = document.createElement("tbody");
      part.head = document.createElement("th");
      const heads = document.createElement("thead");
      const headRow = heads.appendChild(document.createElement("tr"));
      headRow.append(part.head, ...["faults", "share"].map(heading));
      const table = document.createElement("table");
      table.id = part.dimension + "s";
      table.append(heads, part.body);
      const section = document.createElement("section");
      section.append(table);
      parent.append(section);
    }
  },

  update() {
    const counts = this.counts = this.count();
    const isNarrow = view.brush !== null;
    document.getElementById("meant").textContent =
      `${whole(counts.total)} of ${whole(trace.faults.count)} faults ${isNarrow ? "in the brush" : "in view"}`
      + (counts.latency ? `, ${duration(counts.latency)}` : "");
    for (const part of this.parts) this.fill(part, part.count?.(counts) ?? counts[part.dimension], counts.total);
    legend.update(counts.kind);
    document.getElementById("how").textContent = map.isDense
      ? `up to ${whole(map.most)} faults a spot: the stronger, the more` : "a dot is a fault";
  },

  // Each table counts what passes the filters of all others.
  count() {
    const { faults, kinds } = trace;
    const counts = {
      total: 0, latency: 0, kind: new Uint32Array(kinds.length), group: new Uint32Array(trace.groups.length),
      stack: new Uint32Array(trace.stacks.length + 1), thread: new Uint32Array(trace.threads.length),
      cells: new Uint32Array(trace.groups.length * CLASSES),
    };
    eachFault(view.brush ?? view, (i, failed) => {
      if (!failed) {
        counts.total++;
        if (faults.latency[i]) counts.latency += faults.latency[i] - 1;
      }
      if (!(failed & ~FAILS.kind)) counts.kind[faults.kind[i]]++;
      if (!(failed & ~FAILS.group)) counts.group[faults.group[i]]++;
      if (!(failed & ~FAILS.stack)) counts.stack[faults.stack[i]]++;
      if (!(failed & ~FAILS.thread)) counts.thread[faults.thread[i]]++;
      if (!(failed & ~FAILS.pattern)) counts.cells[faults.group[i] * CLASSES + faults.class[i]]++;
    });
    return counts;
  },

  fill(part, counts, total) {
    const chosen = view.chosen[part.dimension];
    const rows = Array.from(counts.keys()).filter(index => counts[index] || index === chosen);
    rows.sort((a, b) => counts[b] - counts[a]);
    if (part.dimension === "pattern") keepEqual(rows, counts);
    // A pattern's sentence has numbers of its own, whatever is in view.
    const isOfAll = part.dimension !== "pattern" || total === trace.faults.count;
    part.head.textContent = part.name + (isOfAll ? "" : ", told of the whole trace") + (rows.length > ROWS ? ` (${ROWS} of ${whole(rows.length)})` : "");
    part.body.parentElement.parentElement.hidden = !rows.length;
    part.body.replaceChildren(...rows.slice(0, ROWS).map(index => {
      const row = document.createElement("tr");
      row.tabIndex = 0;
      row.setAttribute("aria-pressed", index === chosen);
      row.setAttribute("role", "button");
      const name = document.createElement("td");
      name.textContent = part.label(index);
      name.className = part.isCode ? "name code" : "name";
      if (part.more?.(index)) name.append(quiet(part.more(index)));
      row.title = part.tip?.(index) || part.label(index);
      row.append(name, cell(whole(counts[index])), cell(total ? share(counts[index] / total) : ""));
      row.addEventListener("click", () => view.choose(part.dimension, index));
      row.addEventListener("keydown", event => {
        if (event.key === "Enter") view.choose(part.dimension, index);
      });
      return row;
    }));
  },
};

// Patterns with about as many faults keep their order: the one whose advice saves the most comes first.
function keepEqual(rows, counts) {
  for (let from = 0, to; from < rows.length; from = to) {
    to = rows.findIndex((row, at) => at > from && counts[row] < .9 * counts[rows[from]]);
    if (to < 0) to = rows.length;
    rows.splice(from, to - from, ...rows.slice(from, to).sort((a, b) => a - b));
  }
}

function cell(text) {
  const element = document.createElement("td");
  element.className = "number";
  element.textContent = text;
  return element;
}

function heading(text) {
  const element = document.createElement("th");
  element.className = "number";
  element.textContent = text;
  return element;
}

function quiet(text) {
  const element = document.createElement("div");
  element.className = "quiet";
  element.textContent = text;
  return element;
}

const stackFrames = index => index ? trace.stacks[index - 1].map(frame => trace.frames[frame]) : ["no stack recorded"];
const stackLabel = index => stackFrames(index).slice(0, 3).join(" ← ");
const threadLabel = ({ name, tid, pid }) => `${name ?? "thread"} ${tid}` + (tid === pid ? "" : ` (process ${pid})`);

// The kinds, which may be switched off.
const legend = {
  create(parent) {
    this.buttons = trace.kinds.map((_, kind) => {
      const button = document.createElement("button");
      button.className = "kind";
      button.style.setProperty("--c", `var(--k${kind})`);
      button.addEventListener("click", () => view.toggleKind(kind));
      button.hidden = !trace.faults.kind.includes(kind);
      parent.append(button);
      return button;
    });
  },

  update(counts) {
    this.buttons.forEach((button, index) => {
      button.textContent = `${trace.kinds[index]} ${whole(counts[index])}`;
      button.setAttribute("aria-pressed", !view.hidden.has(index));
    });
  },
};
