// The chart on top: faults a second by kind, one kind upon the other, and where events were lost.

const rate = {
  create(parent) {
    this.kinds = trace.kinds.map((_, kind) => kind).reverse();
    this.chart = new uPlot({
      ...sizeOf(parent),
      legend: { show: false },
      padding: [8, edge, 0, 0],
      cursor: cursorOf(true),
      scales: { x: { time: false, range: () => view.x }, y: { range: (_, __, most) => [0, most * 1.05 || 1] } },
      series: [{}, ...this.kinds.map(kind => ({
        fill: () => palette.kinds[kind], stroke: () => palette.kinds[kind], width: 0, points: { show: false },
        paths: uPlot.paths.stepped({ align: 1 }),
      }))],
      axes: [
        { ...axisStyle(), size: 8, values: () => [] },
        { ...axisStyle(), size: sideSize, label: trace.period > 1 ? `faults/s (×${trace.period})` : "faults/s", labelSize: 20, space: 22, values: (_, rates) => rates.map(perSecond) },
      ],
      hooks: { draw: [chart => drawLosses(chart)], setSelect: [chart => selected(chart)] },
    }, this.data(), parent);
  },

  update() { this.chart.setData(this.data()); },

  // A step every three pixels; faults outside the window's addresses count only while all are shown.
  data() {
    const width = this.chart?.over.clientWidth ?? 800;
    const steps = Math.max(50, width / 3 | 0);
    const { x, y, places, failed } = view;
    const step = (x[1] - x[0]) / steps;
    const sums = trace.kinds.map(() => new Float64Array(steps + 1));
    const isWhole = y[0] <= 0 && y[1] >= 1;
    const end = firstAt(x[1]);
    for (let i = firstAt(x[0]); i < end; i++) {
      if (failed[i] || !isWhole && !(places[i] >= y[0] && places[i] <= y[1])) continue;
      sums[trace.faults.kind[i]][(trace.faults.time[i] - x[0]) / step | 0]++;
    }
    const scale = trace.period * 1e9 / step;
    const stacked = [];
    const height = new Float64Array(steps + 1);
    for (const sum of sums) {
      for (let at = 0; at < steps; at++) height[at] += sum[at] * scale;
      stacked.push(Array.from(height));
    }
    return [Array.from({ length: steps + 1 }, (_, at) => x[0] + at * step), ...this.kinds.map(kind => stacked[kind])];
  },
};

function drawLosses(chart) {
  const { ctx, bbox } = chart;
  const dpr = devicePixelRatio;
  ctx.fillStyle = ctx.strokeStyle = palette.bad;
  ctx.lineWidth = dpr;
  for (const [time] of trace.losses) {
    if (time < view.x[0] || time > view.x[1]) continue;
    const x = chart.valToPos(time, "x", true);
    ctx.beginPath();
    ctx.moveTo(x - 4 * dpr, bbox.top - 7 * dpr);
    ctx.lineTo(x + 4 * dpr, bbox.top - 7 * dpr);
    ctx.lineTo(x, bbox.top);
    ctx.fill();
    ctx.fillRect(x - dpr / 2, bbox.top, dpr, bbox.height);
  }
}
