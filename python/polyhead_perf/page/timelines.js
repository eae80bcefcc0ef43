// Time lines: runs, levels and change points of one benchmark.

const drawLine = (element, line) => {
  const byRun = !byId("spacing") || byId("spacing").value === "run";
  const x = line.points.map((point, index) => (byRun ? index + 1 : point.date));
  const times = line.points.map((point) => point.ms);
  const scale =
      [["s", 1e3], ["ms", 1], ["µs", 1e-3], ["ns", 1e-6]].find(([, size]) => Math.max(...times) >= size) || ["ns", 1e-6];
  const y = times.map((ms) => ms / scale[1]);
  const sorted = y.slice().sort((a, b) => a - b), middle = sorted[sorted.length >> 1];
  // At least a tenth of the level up and down, so that noise looks like noise.
  const low = Math.min(sorted[0], middle * 0.9), high = Math.max(sorted[sorted.length - 1], middle * 1.1),
        room = (high - low) * 0.12;
  const bounds = [0, ...line.changes.map((change) => change.index), line.points.length];
  const levels = { x: [], y: [] };
  for (let part = 0; part + 1 < bounds.length; ++part) {
    const of = y.slice(bounds[part], bounds[part + 1]).sort((a, b) => a - b);
    const half = of.length >> 1, level = of.length % 2 ? of[half] : (of[half - 1] + of[half]) / 2;
    levels.x.push(x[bounds[part]], x[bounds[part + 1] - 1], null);
    levels.y.push(level, level, null);
  }
  const tone = colour("--accent");
  const spread = line.points.some((point) => point.q1 !== null) ? {
    error_y: {
      type: "data",
      symmetric: false,
      thickness: 1.2,
      width: 0,
      color: tone,
      array: line.points.map((point, index) => (point.q3 === null ? 0 : Math.max(0, point.q3 / scale[1] - y[index]))),
      arrayminus: line.points.map((point, index) => (point.q1 === null ? 0 : Math.max(0, y[index] - point.q1 / scale[1]))),
    },
  } :
                                                                  {};
  const traces = [
    {...levels, mode: "lines", line: { color: colour("--muted"), width: 2 }, hoverinfo: "skip" },
    {
      x,
      y,
      mode: "markers",
      hoverinfo: "text",
      marker: { color: tone, size: 7 },
      ...spread,
      text: line.points.map(
          (point) => `<b>${duration(point.ms)}</b><br>${point.date.replace("T", " ").slice(0, 16)} ${plain(point.commit)}<br>${
              plain(point.file)}`),
    },
  ];
  const marks = line.changes.map((change) => ({
                                   at: byRun ? change.index + 0.5 : line.points[change.index].date,
                                   change: change.change,
                                 }));
  const ends = [...new Set([0, ...line.changes.map((change) => change.index), line.points.length - 1])];
  // Date labels only where there is room for them: about 80 pixels each, the ends first.
  const room_x = widthOf(element) - 100, at = (index) => room_x * index / Math.max(1, line.points.length - 1);
  const kept = [];
  for (const index of [0, line.points.length - 1, ...ends])
    if (kept.every((other) => Math.abs(at(other) - at(index)) >= 84)) kept.push(index);
  draw(element, traces, {
    height: 230,
    margin: { l: 8, r: 38, t: 22, b: 30 },
    xaxis: axis(
        byRun ? {
          range: [0.5 - line.points.length * 0.02, line.points.length + 0.5 + line.points.length * 0.02],
          tickvals: kept.map((index) => index + 1),
          ticktext: kept.map((index) => line.points[index].date.slice(0, 10)),
          showgrid: false,
          tickangle: 0,
        } :
                { type: "date", nticks: 4, showgrid: false, tickangle: 0 }),
    yaxis: axis({ range: [low - room, high + room], ticksuffix: ` ${scale[0]}`, nticks: 5 }),
    shapes: marks.map((mark) => ({
                        type: "line",
                        x0: mark.at,
                        x1: mark.at,
                        yref: "paper",
                        y0: 0,
                        y1: 1,
                        line: { color: colour(mark.change > 0 ? "--bad" : "--good"), width: 1.5, dash: "dot" },
                      })),
    annotations: marks.map((mark) => ({
                             x: mark.at,
                             yref: "paper",
                             y: 1,
                             yanchor: "bottom",
                             showarrow: false,
                             text: percent(mark.change),
                             font: { size: 12, color: colour(mark.change > 0 ? "--bad" : "--good") },
                           })),
  });
  return true;
};
