// Times over sizes: one family of polyhead-sweep, its cliffs marked.

const drawSweep = (element, panel) => {
  const x = panel.points.map((point) => point.size), times = panel.points.map((point) => point.ms);
  const most = Math.max(...times);
  const [unit, size] = [["s", 1e3], ["ms", 1], ["µs", 1e-3], ["ns", 1e-6]].find(([, of]) => most >= of) || ["ns", 1e-6];
  const marker = (point) => colour(point.cliff === null ? "--accent" : "--bad");
  draw(element, [{
         x,
         y: times.map((ms) => ms / size),
         mode: "lines+markers",
         hoverinfo: "text",
         line: { color: colour("--accent"), width: 1 },
         marker: { color: panel.points.map(marker), size: panel.points.map((point) => (point.cliff === null ? 4 : 9)) },
         text: panel.points.map((point) => `<b>${point.size} ${plain(panel.unit)}</b><br>${duration(point.ms)}` +
                                    (point.cliff === null ? "" : `<br>cliff: ${three(point.cliff)} times`)),
       }],
       {
         height: 230,
         margin: { l: 8, r: 16, t: 12, b: 40 },
         xaxis: axis({ title: { text: plain(panel.unit), standoff: 6 }, nticks: 6 }),
         yaxis: axis({ rangemode: "tozero", ticksuffix: ` ${unit}`, nticks: 5 }),
       });
  return true;
};
