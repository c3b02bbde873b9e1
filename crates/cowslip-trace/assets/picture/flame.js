// A flame graph of a tree of functions: { name, weight, title, callees }, perhaps with a colour. A function is as wide as its
// weight, which includes that of its callees; its callers lie above it.

const NARROWEST = 1 / 500, MOST_SHOWN = 3000;

const flame = {
  create(parent) {
    this.parent = parent;
    // Names from the outermost function to the one that fills the width.
    this.path = [];
    parent.addEventListener("click", event => this.choose(event.target));
    parent.addEventListener("keydown", event => { if (event.key === "Enter") this.choose(event.target); });
  },

  draw(root) {
    this.root = root;
    this.parent.hidden = !root.weight;
    // The functions above the chosen one keep their place, as wide as it.
    let at = root;
    const above = [root];
    for (const name of this.path) {
      const next = at.callees.find(callee => callee.name === name);
      if (!next) break;
      above.push(at = next);
    }
    this.path.length = above.length - 1;
    const boxes = above.map((node, depth) => this.box(node, depth, 0, 1, this.path.slice(0, depth)));
    let deepest = above.length;
    const add = (node, depth, left, path) => {
      for (const callee of node.callees) {
        const width = callee.weight / at.weight;
        if (width >= NARROWEST && boxes.length < MOST_SHOWN) {
          const here = [...path, callee.name];
          boxes.push(this.box(callee, depth, left, width, here));
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

  box(node, depth, left, width, path) {
    const box = document.createElement("button");
    box.textContent = node.name;
    box.title = node.title;
    if (node.colour) box.style.background = node.colour;
    box.style.left = `${left * 100}%`;
    box.style.width = `${width * 100}%`;
    box.style.top = `${depth * 1.3}rem`;
    box.path = path;
    return box;
  },

  choose(box) {
    if (!box.path) return;
    this.path = box.path;
    this.draw(this.root);
  },
};
