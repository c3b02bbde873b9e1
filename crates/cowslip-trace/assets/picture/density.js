// Many faults at once: a grid of cells, coloured by what kinds are in each and how many.

const grid = document.createElement("canvas");

// Draws the faults `indices` (of them `count`) of the window into a rectangle of device pixels.
function drawDensity(context, box, cell, indices, count) {
  const width = Math.ceil(box.width / cell), height = Math.ceil(box.height / cell);
  const { x, y, places } = view;
  const { time, kind } = trace.faults;
  const perTime = width / (x[1] - x[0]), perPlace = height / (y[1] - y[0]);
  const colours = palette.kinds.map(rgb);
  const red = new Float32Array(width * height), green = new Float32Array(width * height);
  const blue = new Float32Array(width * height), counts = new Uint32Array(width * height);
  let most = 1;
  for (let n = 0; n < count; n++) {
    const i = indices[n];
    const column = Math.min(width - 1, (time[i] - x[0]) * perTime | 0);
    const row = Math.min(height - 1, (y[1] - places[i]) * perPlace | 0);
    const at = row * width + column;
    const colour = colours[kind[i]];
    red[at] += colour[0];
    green[at] += colour[1];
    blue[at] += colour[2];
    if (++counts[at] > most) most = counts[at];
  }
  paintCells(context, box, cell, width, height, { red, green, blue, counts, most });
  return most;
}

// Few in a cell are faint, the most are full and nearer to the ink.
function paintCells(context, box, cell, width, height, { red, green, blue, counts, most }) {
  const image = new ImageData(width, height);
  const ink = rgb(palette.ink);
  const scale = 1 / Math.log2(most + 1);
  for (let at = 0; at < counts.length; at++) {
    const count = counts[at];
    if (!count) continue;
    const level = Math.log2(count + 1) * scale;
    const deep = most > 1 ? .4 * level * level : 0;
    image.data[4 * at] = red[at] / count * (1 - deep) + ink[0] * deep;
    image.data[4 * at + 1] = green[at] / count * (1 - deep) + ink[1] * deep;
    image.data[4 * at + 2] = blue[at] / count * (1 - deep) + ink[2] * deep;
    image.data[4 * at + 3] = most > 1 ? 130 + 125 * level : 220;
  }
  grid.width = width;
  grid.height = height;
  grid.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(grid, box.left, box.top, width * cell, height * cell);
}
