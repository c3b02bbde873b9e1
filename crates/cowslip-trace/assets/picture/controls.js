// Mouse, wheel and keys.

let mode = "zoom", isShifted = false;

const KEYS = {
  ArrowLeft: () => view.pan(-.2, 0), ArrowRight: () => view.pan(.2, 0),
  ArrowUp: () => view.pan(0, .2), ArrowDown: () => view.pan(0, -.2),
  "+": () => view.zoom(.5), "=": () => view.zoom(.5), "-": () => view.zoom(2),
  0: () => view.reset(), Home: () => view.reset(), Escape: () => view.clear(),
  z: () => setMode("zoom"), b: () => setMode("brush"), p: () => setMode("pan"),
  t: () => toggleTheme(),
};

function setMode(name) {
  mode = name;
  for (const button of document.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", button.dataset.mode === name);
  map.parent.dataset.mode = name;
}

// A rectangle was drawn with the mouse: zoom into it or, with the brush or Shift, count what is in it.
function selected(chart) {
  const { left, top, width, height } = chart.select;
  chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  const isTime = chart === rate.chart;
  if (width < 4 || !isTime && height < 4) return;
  const x = [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")];
  const isBrush = mode === "brush" || isShifted;
  const y = isTime ? isBrush ? WHOLE : view.y : [chart.posToVal(top + height, "y"), chart.posToVal(top, "y")];
  if (isBrush) view.setBrush({ x, y }); else view.show(x, y);
}

// What uPlot is told of the mouse: nothing while panning.
const cursorOf = isTime => ({
  points: { show: false },
  y: !isTime,
  drag: { x: true, y: !isTime, setScale: false },
  sync: { key: "cowslip", scales: ["x", null], filters: { pub: type => type === "mousemove" || type === "mouseleave" } },
  bind: {
    mousedown: (chart, _, start) => event => {
      isShifted = event.shiftKey;
      if (mode === "pan" || event.button === 1) return pan(chart, event);
      if (event.button === 0) start(event);
    },
    dblclick: () => () => view.reset(),
  },
});

function pan(chart, event) {
  event.preventDefault();
  const { over } = chart, start = { x: view.x, y: view.y }, from = [event.clientX, event.clientY];
  const move = event => {
    const x = (from[0] - event.clientX) / over.clientWidth * (start.x[1] - start.x[0]);
    const y = chart === rate.chart ? 0 : (event.clientY - from[1]) / over.clientHeight * (start.y[1] - start.y[0]);
    view.show(start.x.map(it => it + x), start.y.map(it => it + y));
  };
  addEventListener("mousemove", move);
  addEventListener("mouseup", () => removeEventListener("mousemove", move), { once: true });
}

// The wheel zooms at the pointer: both axes, only time with Shift, only addresses with Alt.
function listenToWheel(chart, axes) {
  chart.over.addEventListener("wheel", event => {
    event.preventDefault();
    const { clientWidth, clientHeight } = chart.over;
    const by = 1.0015 ** (event.deltaY || event.deltaX);
    const wanted = event.shiftKey ? "x" : event.altKey ? "y" : axes;
    view.zoom(by, event.offsetX / clientWidth, 1 - event.offsetY / clientHeight, wanted);
  }, { passive: false });
}

function listen() {
  listenToWheel(map.chart, "xy");
  listenToWheel(rate.chart, "x");
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input")) return;
    const isScrolling = event.key.startsWith("Arrow") && event.target !== map.parent && event.target !== document.body;
    if (!KEYS[event.key] || isScrolling) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  for (const button of document.querySelectorAll("[data-mode]")) button.addEventListener("click", () => setMode(button.dataset.mode));
  for (const button of document.querySelectorAll("[data-key]")) button.addEventListener("click", () => KEYS[button.dataset.key]());
  setMode("zoom");
}

function listenToSpaces(select) {
  const drawn = trace.spaces.filter(space => space.is_drawn).length;
  const all = drawn < trace.spaces.length ? `the busiest ${drawn} of ${trace.spaces.length} programs` : "all programs";
  select.append(new Option(all, ""), ...trace.spaces.map((space, index) => new Option(space.label, index)));
  select.hidden = trace.spaces.length < 2;
  select.addEventListener("change", () => {
    view.showSpace(select.value === "" ? null : +select.value);
  });
}

// The system's theme, until the other one is asked for.
function toggleTheme() {
  document.documentElement.style.colorScheme = isDark() ? "light" : "dark";
  restyle();
}

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.style.colorScheme || (darkSystem.matches ? "dark" : "light")) === "dark";

function restyle() {
  palette.read();
  view.changed();
}
