// What is looked at: a window of time and addresses, a brush inside it, and filters.

const SPARE = .01;
const WHOLE = [-SPARE, 1 + SPARE];

const view = {
  x: WHOLE, y: WHOLE,
  brush: null,
  hidden: new Set(),
  chosen: { group: null, stack: null, thread: null, pattern: null, space: null },
  axis: null,
  places: null,
  failed: null,
  listeners: [],

  onChange(listener) { this.listeners.push(listener); },

  // Tells the listeners once a frame, however often something changed.
  changed() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      for (const listener of this.listeners) listener();
    });
  },

  // Lays out the axis for the address space chosen, and places the faults on it.
  layOut() {
    const { faults, spaces } = trace;
    const chosen = this.chosen.space;
    this.axis = new AddressAxis(spaces, index => chosen === null ? spaces[index].is_drawn : index === chosen);
    this.places ??= new Float64Array(faults.count);
    for (let i = 0; i < faults.count; i++) {
      this.places[i] = this.axis.place(faults.space[i], faults.page[i] + faults.low[i] / 4096);
    }
  },

  reset() { this.show([-Infinity, Infinity], WHOLE); },

  // A little stays free at the edges, so that nothing sits on the frame.
  show(x, y) {
    const spare = trace.duration_ns * SPARE;
    this.x = clamp(x, -spare, trace.duration_ns + spare, 20);
    this.y = clamp(y, ...WHOLE, 1e-12);
    this.changed();
  },

  // Zooms by `factor` so that the point at the shares `x`, `y` of the window stays where it is.
  zoom(factor, x = .5, y = .5, axes = "xy") {
    const scale = ([low, high], at, wanted) => {
      const middle = low + (high - low) * at;
      return wanted ? [middle - (middle - low) * factor, middle + (high - middle) * factor] : [low, high];
    };
    this.show(scale(this.x, x, axes.includes("x")), scale(this.y, y, axes.includes("y")));
  },

  pan(x, y) {
    const by = ([low, high], part) => [low + (high - low) * part, high + (high - low) * part];
    this.show(by(this.x, x), by(this.y, y));
  },

  setBrush(brush) {
    this.brush = brush;
    this.changed();
  },

  // Choosing what is chosen already lets it go.
  choose(dimension, value) {
    this.chosen[dimension] = this.chosen[dimension] === value ? null : value;
    this.filtered();
  },

  showSpace(space) {
    this.chosen.space = space;
    this.layOut();
    this.brush = null;
    this.y = WHOLE;
    this.filtered();
  },

  toggleKind(kind) {
    if (!this.hidden.delete(kind)) this.hidden.add(kind);
    this.filtered();
  },

  clear() {
    this.brush = null;
    this.hidden.clear();
    for (const dimension in this.chosen) if (dimension !== "space") this.chosen[dimension] = null;
    this.filtered();
  },

  filtered() {
    findFailures();
    this.changed();
  },
};

// A range inside the limits, of its own length if that fits and of `least` at least.
function clamp([low, high], from, to, least) {
  if (high - low >= to - from) return [from, to];
  const length = Math.max(least, high - low);
  const start = Math.min(Math.max((low + high - length) / 2, from), to - length);
  return [start, start + length];
}
