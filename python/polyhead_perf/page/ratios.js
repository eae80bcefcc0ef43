// Speeds beside other engines. Polyhead's bar starts at 1, the best peer; every engine has its mark.

const drawRatios = (element, panel) => {
  const cases = panel.cases.filter(
      (row) => words().every(
          (word) => searched({...panel, name: row.case, engine: row.engines.map((e) => e.name).join(" ") }).includes(word)));
  if (!cases.length) return false;
  const place = cases.map((row, index) => cases.length - index);
  const speeds = cases.flatMap((row) => row.engines.map((engine) => engine.speed));
  const low = Math.min(0.9, ...speeds) * 0.88, high = Math.max(1.1, ...speeds) * 1.12;
  const bars = { x: [], y: [] };
  cases.forEach((row, index) => {
    bars.x.push(1, row.ratio, null);
    bars.y.push(place[index], place[index], null);
  });
  const traces = [{
    ...bars,
    mode: "lines",
    line: { color: colour("--engine-polyhead"), width: 13 },
    opacity: 0.28,
    hoverinfo: "skip",
  }];
  const present = ENGINES.concat([...new Set(cases.flatMap((row) => row.engines.map((engine) => engine.engine)))].filter(
      (engine) => !ENGINES.includes(engine)));
  for (const engine of present.slice().reverse()) {  // ours last, on top
    const marks = { x: [], y: [], text: [] };
    cases.forEach((row, index) => {
      const found = row.engines.find((of) => of.engine === engine);
      if (!found) return;
      marks.x.push(found.speed);
      marks.y.push(place[index]);
      const spread = found.q1 && found.q3 ? `<br>middle half ${duration(found.q1)} to ${duration(found.q3)}` : "";
      marks.text.push(
          `<b>${plain(row.case)}</b><br>${plain(found.name)}: ${duration(found.ms)}, ${three(found.speed)}×${spread}` +
          (engine === data.ours ? `<br>best peer: ${plain(row.best)}` : ""));
    });
    if (marks.x.length) {
      traces.push({
        ...marks,
        mode: "markers",
        hoverinfo: "text",
        name: engine,
        marker: {
          color: engineColour(engine),
          symbol: SYMBOLS[engine] || "cross",
          size: engine === data.ours ? 12 : 8.5,
          line: { width: 1.5, color: engineColour(engine) }
        },
      });
    }
  }
  const mean = Math.exp(cases.reduce((sum, row) => sum + Math.log(row.ratio), 0) / cases.length);
  const vertical = (x, line) => ({ type: "line", x0: x, x1: x, y0: 0.4, y1: cases.length + 0.6, layer: "below", line });
  const names = cases.map((row) => row.case), left = labelRoom(names), right = 52;
  draw(element, traces, {
    height: cases.length * 27 + 62,
    margin: { l: left, r: right, t: 6, b: 46 },
    xaxis: axis({
      type: "log",
      range: [Math.log10(low), Math.log10(high)],
      title: { text: "speed, best peer = 1", font: { size: 12, color: colour("--muted") }, standoff: 6 },
      ...logTicks(low, high, widthOf(element) - left - right, 38, (value) => `${value}×`),
    }),
    yaxis: axis({
      range: [0.4, cases.length + 0.6],
      tickvals: place,
      ticktext: names.map((name) => `${plain(name)} `),
      tickfont: { color: colour("--text") },
      showgrid: false
    }),
    annotations: cases.map((row, index) => ({
                             xref: "paper",
                             x: 1,
                             xanchor: "left",
                             xshift: 4,
                             y: place[index],
                             yanchor: "middle",
                             showarrow: false,
                             text: `${row.ratio.toFixed(2)}×`,
                             font: { size: 13, color: colour(row.ratio < 1 ? "--bad" : "--text") },
                           })),
    shapes: [
      vertical(1, { color: colour("--muted"), width: 1.5 }),
      vertical(mean, { color: colour("--engine-polyhead"), width: 1.5, dash: "dash" })
    ],
  });
  return true;
};
