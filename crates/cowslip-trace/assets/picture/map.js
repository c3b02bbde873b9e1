// The big chart: time across, addresses up; maps as bars, faults as dots or as density.

const DOTS = 30_000;
let shownIndices = new Uint32Array(0);

const map = {
  // What was drawn last: the faults' indices (the first `count` of them), and how.
  count: 0, isDense: false, most: 1,

  create(parent) {
    shownIndices = new Uint32Array(trace.faults.count);
    this.parent = parent;
    this.chart = new uPlot({
      ...sizeOf(parent),
      legend: { show: false },
      padding: [4, edge, 0, 0],
      cursor: cursorOf(false),
      scales: { x: { time: false, range: () => view.x }, y: { range: () => view.y } },
      series: [{}, { paths: () => null, points: { show: false } }],
      axes: [
        { ...axisStyle(), label: "time since the trace began", labelSize: 20, size: 32, values: timeLabels },
        {
          ...axisStyle(), size: sideSize, label: "address", labelSize: 20, font: "11px ui-monospace, monospace",
          splits: (chart, _, low, high) => view.axis.ticks(low, high, Math.max(2, chart.height / 22)).map(tick => tick.place),
          values: (chart, places) => places.map(place => isNarrow(chart) ? shortHex(pageAt(place)) : hex(pageAt(place))),
        },
      ],
      hooks: { drawAxes: [chart => this.draw(chart)], setSelect: [chart => selected(chart)] },
    }, [[0, 1], [0, 1]], parent);
  },

  update() {
    const { chart } = this;
    chart.batch(() => {
      chart.setScale("x", { min: view.x[0], max: view.x[1] });
      chart.setScale("y", { min: view.y[0], max: view.y[1] });
      chart.redraw(false, true);
    });
  },

  draw(chart) {
    const { ctx, bbox } = chart;
    this.count = 0;
    eachFault(view, (i, failed) => { if (!failed) shownIndices[this.count++] = i; });
    this.isDense = this.count > DOTS;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    drawBars(chart);
    drawBreaks(chart);
    if (this.isDense) {
      this.most = drawDensity(ctx, bbox, Math.round(2 * devicePixelRatio), shownIndices, this.count);
    } else {
      drawDots(chart, shownIndices, this.count);
    }
    drawNames(chart);
    drawBrush(chart);
    ctx.restore();
  },

  // Where a time and place lie, in device pixels of the canvas.
  px(chart, time, place) {
    const { bbox } = chart, { x, y } = view;
    return [
      bbox.left + (time - x[0]) / (x[1] - x[0]) * bbox.width,
      bbox.top + (y[1] - place) / (y[1] - y[0]) * bbox.height,
    ];
  },
};

// A telephone's width leaves less room for labels.
const isNarrow = chart => chart.width < 600;

// Half of the longest label of a time fits in here: one may be of the last pixel.
const edge = chart => isNarrow(chart) ? 32 : 48;

// Addresses fit in here: whole ones, or their last digits.
const sideSize = chart => isNarrow(chart) ? 72 : 128;

const FONT = "12px system-ui, sans-serif";
const axisStyle = () => ({
  stroke: () => palette.quiet, font: FONT, labelFont: FONT,
  grid: { stroke: () => palette.grid, width: 1 }, ticks: { stroke: () => palette.grid, width: 1, size: 5 },
});

const sizeOf = element => ({ width: element.clientWidth, height: element.clientHeight });

// The unit is that of the whole window, with the decimals that tell neighbours apart.
function timeLabels(_, times) {
  const step = times[1] - times[0] || 1;
  const [unit, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([unit]) => view.x[1] >= unit) ?? [1, "ns"];
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return times.map(time => (time / unit).toFixed(decimals) + " " + name);
}

// The whole page at a place that is a tick's: rounding must not lead to the one below.
function pageAt(place) {
  const band = view.axis.bands.findLast(band => band.low <= place + 1e-12);
  return Math.round(band.start + (place - band.low) / band.scale);
}

// A dot is larger if there are few.
function drawDots(chart, indices, count) {
  const { ctx } = chart;
  const radius = (count < 1000 ? 3.5 : count < 8000 ? 2.5 : 1.6) * devicePixelRatio;
  const byKind = trace.kinds.map(() => new Path2D());
  for (let n = 0; n < count; n++) {
    const i = indices[n];
    const [x, y] = map.px(chart, trace.faults.time[i], view.places[i]);
    const path = byKind[trace.faults.kind[i]];
    if (radius < 2) path.rect(x - radius, y - radius, 2 * radius, 2 * radius);
    else path.moveTo(x + radius, y), path.arc(x, y, radius, 0, 7);
  }
  ctx.globalAlpha = .85;
  byKind.forEach((path, kind) => {
    ctx.fillStyle = palette.kinds[kind];
    ctx.fill(path);
  });
  ctx.globalAlpha = 1;
}

function drawBrush(chart) {
  const { ctx } = chart, { brush } = view;
  if (!brush) return;
  const [left, bottom] = map.px(chart, brush.x[0], brush.y[0]);
  const [right, top] = map.px(chart, brush.x[1], brush.y[1]);
  ctx.strokeStyle = ctx.fillStyle = palette.brush;
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.globalAlpha = .12;
  ctx.fillRect(left, top, right - left, bottom - top);
  ctx.globalAlpha = 1;
  ctx.strokeRect(left, top, right - left, bottom - top);
}
