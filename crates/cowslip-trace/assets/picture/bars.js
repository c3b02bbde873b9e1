// What lies under the faults: the maps from map to unmap, the breaks of the axis, the names.

function drawBars(chart) {
  const { ctx, bbox } = chart, { x, y } = view, { bars } = trace;
  const outlines = new Path2D();
  const fills = {};
  const isTaken = new Uint8Array((bbox.width + 2) * (bbox.height + 2));
  const perTime = bbox.width / (x[1] - x[0]), perPlace = bbox.height / (y[1] - y[0]);
  for (let i = 0; i < bars.count; i++) {
    if (bars.to[i] < x[0] || bars.from[i] > x[1]) continue;
    for (const band of view.axis.ofSpace[bars.space[i]]) {
      if (bars.end[i] <= band.start || bars.start[i] >= band.end) continue;
      const low = Math.max(y[0], band.low + (Math.max(bars.start[i], band.start) - band.start) * band.scale);
      const high = Math.min(y[1], band.low + (Math.min(bars.end[i], band.end) - band.start) * band.scale);
      if (high < low) continue;
      const left = Math.max(0, bars.from[i] - x[0]) * perTime, top = (y[1] - high) * perPlace;
      const width = Math.max(1, (Math.min(x[1], bars.to[i]) - x[0]) * perTime - left);
      const height = Math.max(1, (high - low) * perPlace);
      // Of many tiny ones in a pixel, one is enough.
      if (width < 2 && height < 2) {
        const pixel = (top | 0) * (bbox.width | 0) + (left | 0);
        if (isTaken[pixel]) continue;
        isTaken[pixel] = 1;
      }
      const path = fills[trace.groups[bars.group[i]].tint] ??= new Path2D();
      path.rect(bbox.left + left, bbox.top + top, width, height);
      if (height > 5 && width > 3) outlines.rect(bbox.left + left, bbox.top + top, width, height);
    }
  }
  for (const tint in fills) {
    ctx.fillStyle = palette.maps[tint];
    ctx.fill(fills[tint]);
  }
  ctx.strokeStyle = palette.grid;
  ctx.lineWidth = devicePixelRatio;
  ctx.stroke(outlines);
}

// A break is a zigzag with the size of what is left out.
function drawBreaks(chart) {
  const { ctx, bbox } = chart;
  const dpr = devicePixelRatio;
  ctx.font = `${10 * dpr}px system-ui, sans-serif`;
  ctx.textAlign = "right";
  ctx.textBaseline = "middle";
  view.axis.bands.forEach((band, index) => {
    if (!band.isBroken) return;
    const below = view.axis.bands[index - 1];
    const [, y] = map.px(chart, 0, (below.high + band.low) / 2);
    if (y < bbox.top || y > bbox.top + bbox.height) return;
    const room = map.px(chart, 0, below.high)[1] - map.px(chart, 0, band.low)[1];
    const swing = Math.min(2.5 * dpr, room / 2);
    ctx.strokeStyle = band.first ? palette.quiet : palette.rule;
    ctx.lineWidth = dpr;
    ctx.beginPath();
    for (let x = bbox.left, up = 1; x <= bbox.left + bbox.width; x += 5 * dpr, up = -up) ctx.lineTo(x, y + up * (band.first ? 0 : swing));
    ctx.stroke();
    if (!band.gap || room < 8 * dpr) return;
    const label = `gap of ${size(band.gap * 4096)}`;
    const right = bbox.left + bbox.width - 6 * dpr;
    ctx.fillStyle = palette.page;
    ctx.fillRect(right - ctx.measureText(label).width - 4 * dpr, y - 6 * dpr, ctx.measureText(label).width + 8 * dpr, 12 * dpr);
    ctx.fillStyle = palette.quiet;
    ctx.fillText(label, right, y);
  });
}

// The name of each program at the bottom of its bands, if there are several, and of what has the most faults in each.
function drawNames(chart) {
  const { ctx, bbox } = chart;
  const dpr = devicePixelRatio, line = 12 * dpr;
  const taken = [];
  const write = (text, y, weight) => {
    if (!text || y - line < bbox.top - 2 * dpr || taken.some(other => Math.abs(other - y) < line)) return;
    taken.push(y);
    ctx.font = `${weight} ${11 * dpr}px system-ui, sans-serif`;
    ctx.strokeStyle = palette.page;
    ctx.lineWidth = 3 * dpr;
    ctx.globalAlpha = .8;
    ctx.strokeText(text, bbox.left + 6 * dpr, y);
    ctx.globalAlpha = 1;
    ctx.fillStyle = palette.ink;
    ctx.fillText(text, bbox.left + 6 * dpr, y);
  };
  ctx.textAlign = "left";
  ctx.textBaseline = "bottom";
  ctx.lineJoin = "round";
  const bands = view.axis.bands.map(band => {
    const low = Math.min(map.px(chart, 0, band.low)[1], bbox.top + bbox.height);
    return { band, y: low - 2 * dpr, height: low - Math.max(map.px(chart, 0, band.high)[1], bbox.top) };
  });
  if (bands.some(({ band }) => band.space !== bands[0].band.space)) {
    for (const { band, y } of bands) if (band.first) write(trace.spaces[band.space].label, y, 700);
  }
  for (const { band, y, height } of bands) {
    const { names } = trace.spaces[band.space];
    if (height > 4 * dpr) write(names[view.axis.ofSpace[band.space].indexOf(band)], y, 400);
  }
}
