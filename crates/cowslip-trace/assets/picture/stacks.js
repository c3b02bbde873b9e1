// The call stacks of the faults in view or in the brush, as a flame graph.

const stacks = {
  // The tree of the functions, by the faults of each stack; stacks that were not recorded are left out.
  tree(counts) {
    const root = { name: "all", weight: 0, callees: new Map() };
    trace.stacks.forEach((stack, index) => {
      const faults = counts[index + 1];
      if (!faults) return;
      root.weight += faults;
      let at = root;
      for (let depth = stack.length - 1; depth >= 0; depth--) {
        const name = trace.frames[stack[depth]];
        if (!at.callees.has(name)) at.callees.set(name, { name, weight: 0, callees: new Map() });
        at = at.callees.get(name);
        at.weight += faults;
      }
    });
    const finish = node => {
      node.title = `${node.name}\n${whole(node.weight)} faults, ${share(node.weight / root.weight)}`;
      node.callees = [...node.callees.values()].sort((a, b) => a.name < b.name ? -1 : 1);
      node.callees.forEach(finish);
    };
    finish(root);
    return root;
  },

  update() {
    if (trace.stacks.length) flame.draw(this.tree(tables.counts.stack));
  },
};
