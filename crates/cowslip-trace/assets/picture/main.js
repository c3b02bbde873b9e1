// Puts the page together.

// What is drawn, and when it first was, in milliseconds since the page was asked for.
let trace, drawnAt;

async function main() {
  const element = document.getElementById("trace");
  trace = await unpack(element.textContent);
  element.remove();
  palette.read();
  view.layOut();
  findFailures();
  view.reset();
  const parts = id => document.getElementById(id);
  rate.create(parts("rate"));
  map.create(parts("map"));
  hover.create(parts("map"), parts("tip"));
  legend.create(parts("kinds"));
  tables.create(parts("tables"));
  flame.create(parts("flame"));
  listenToSpaces(parts("spaces"));
  listen();
  for (const part of [map, rate, tables, stacks]) view.onChange(() => part.update());
  darkSystem.addEventListener("change", restyle);
  new ResizeObserver(() => {
    for (const part of [rate, map]) part.chart.setSize(sizeOf(part.chart.root.parentElement));
    view.changed();
  }).observe(parts("map"));
  requestAnimationFrame(() => drawnAt = performance.now());
  document.body.dataset.state = "ready";
}

main().catch(error => {
  document.getElementById("meant").textContent = `This browser cannot draw the picture: ${error.message}`;
  document.body.dataset.state = "failed";
});
