// The colours of the page, read from its style sheet so that light and dark are said once.

const palette = {
  read() {
    const probe = document.body.appendChild(document.createElement("i"));
    const colour = name => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    for (const name of ["ink", "quiet", "grid", "rule", "page", "bad", "brush"]) this[name] = colour(name);
    this.maps = Object.fromEntries(["file", "anonymous", "special"].map(tint => [tint, colour("map-" + tint)]));
    this.kinds = trace.kinds.map((_, kind) => colour("k" + kind));
    probe.remove();
  },
};

// "rgb(1, 2, 3)" as three numbers.
const rgb = colour => colour.match(/[\d.]+/g).slice(0, 3).map(Number);
