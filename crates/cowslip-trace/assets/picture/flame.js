// The flame graph: the call stacks of the faults in view or in the brush. A function is as wide as it and the functions that it
// called have faults; its callers lie above it.

const NARROWEST = 1 / 500, MOST_SHOWN = 3000;

const flame = {
  create(parent) {
    this.parent = parent;
    this.hasStacks = trace.stacks.length > 0;
    // Names of frames from the outermost to the one that fills the width.
    this.path = [];
    parent.addEventListener("click", event => this.choose(event.target));
    parent.addEventListener("keydown", event => { if (event.key === "Enter") this.choose(event.target); });
  },

  // The tree of the functions, by the faults of each stack; stacks that were not recorded are left out.
  tree(counts) {
    const root = { name: "all", faults: 0, callees: new Map() };
    trace.stacks.forEach((stack, index) => {
      const faults = counts[index + 1];
      if (!faults) return;
      root.faults += faults;
      let at = root;
      for (let depth = stack.length - 1; depth >= 0; depth--) {
        const frame = stack[depth];
        if (!at.callees.has(frame)) at.callees.set(frame, { name: trace.frames[frame], frame, faults: 0, callees: new Map() });
        at = at.callees.get(frame);
        at.faults += faults;
      }
    });
    return root;
  },

  update() {
    if (!this.hasStacks) return;
    const root = this.tree(tables.counts.stack);
    this.parent.hidden = !root.faults;
    // The functions above the chosen one keep their place, as wide as it.
    let at = root;
    const above = [root];
    for (const frame of this.path) {
      const next = at.callees.get(frame);
      if (!next) break;
      above.push(at = next);
    }
    this.path.length = above.length - 1;
    const boxes = above.map((node, depth) => this.box(node, depth, 0, 1, root, this.path.slice(0, depth)));
    let deepest = above.length;
    const add = (node, depth, left, path) => {
      const callees = [...node.callees.values()].sort((a, b) => a.name < b.name ? -1 : 1);
      for (const callee of callees) {
        const width = callee.faults / at.faults;
        if (width >= NARROWEST && boxes.length < MOST_SHOWN) {
          const here = [...path, callee.frame];
          boxes.push(this.box(callee, depth, left, width, root, here));
          deepest = Math.max(deepest, depth + 1);
          add(callee, depth + 1, left, here);
        }
        left += width;
      }
    };
    add(at, above.length, 0, this.path);
    const rows = document.createElement("div");
    rows.style.height = `${deepest * 1.3}rem`;
    rows.append(...boxes);
    this.parent.querySelector("div").replaceWith(rows);
  },

  box(node, depth, left, width, root, path) {
    const box = document.createElement("button");
    box.textContent = node.name;
    box.title = `${node.name}\n${whole(node.faults)} faults, ${share(node.faults / root.faults)}`;
    box.style.left = `${left * 100}%`;
    box.style.width = `${width * 100}%`;
    box.style.top = `${depth * 1.3}rem`;
    box.path = path;
    return box;
  },

  choose(box) {
    if (!box.path) return;
    this.path = box.path;
    this.update();
  },
};
