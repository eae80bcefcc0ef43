// Draws the charts with plotly and makes filters, sorting and paging work. Every text of a result file reaches the page as a text
// node, or escaped for plotly's small markup (plain()).
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const narrow = () => document.documentElement.clientWidth < 768;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // ---- numbers as people write them

  const three = (value) => {
    if (value === 0) return "0";
    const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
    return value.toFixed(Math.min(digits, 8));
  };
  const duration = (ms) => {
    for (const [unit, scale] of [["s", 1e3], ["ms", 1], ["µs", 1e-3]]) if (ms >= scale) return `${three(ms / scale)} ${unit}`;
    return `${three(ms * 1e6)} ns`;
  };
  const percent = (change) => `${change >= 0 ? "+" : "−"}${Math.abs(change * 100).toFixed(1)} %`;
  const threadCount = (count) => `${count} thread${count === 1 ? "" : "s"}`;

  // ---- filters: the same for charts and table, kept in the address so that a view can be sent on

  const selects = [...document.querySelectorAll("select[data-filter]")];
  const search = byId("filter-text");
  const searched = (item) => [item.name, item.engine, item.machine, item.isa, item.threads ? threadCount(item.threads) : "",
    item.bound, item.commit, item.date, item.problem, item.part].filter(Boolean).join(" ").toLowerCase();
  const words = () => search.value.toLowerCase().split(/\s+/).filter(Boolean);
  // `item` lacks a field: a filter on that field does not concern it.
  const passes = (item, except = []) => selects.every((select) => {
    const value = item[select.dataset.filter];
    return except.includes(select.dataset.filter) || select.value === "" || value === undefined || String(value) === select.value;
  });
  const matches = (item) => passes(item) && words().every((word) => searched(item).includes(word));

  const readAddress = () => {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const select of selects) {
      const value = wanted.get(select.dataset.filter);
      if (value !== null && [...select.options].some((option) => option.value === value)) select.value = value;
    }
    search.value = wanted.get("text") || "";
  };
  const writeAddress = () => {
    const state = new URLSearchParams();
    for (const select of selects) if (select.value) state.set(select.dataset.filter, select.value);
    if (search.value) state.set("text", search.value);
    history.replaceState(null, "", state.toString() ? `#${state}` : location.pathname + location.search);
  };

  // ---- charts

  const ENGINES = ["polyhead", "torch", "torch-module", "torch-sdpa", "vllm", "vllm+pack", "onnxruntime", "openvino"];
  const SYMBOLS = {
    polyhead: "circle", torch: "square", "torch-module": "square-open", "torch-sdpa": "square", vllm: "triangle-up",
    "vllm+pack": "triangle-up-open", onnxruntime: "diamond", openvino: "triangle-down",
  };
  const engineColour = (engine) => colour(`--engine-${ENGINES.includes(engine) ? engine.replace("+", "-") : "other"}`);
  // Of the rooflines: each kind of benchmark has its colour and mark in all of them.
  const groups = [...new Set(data.rooflines.flatMap((panel) => [...panel.points.map((point) => point.row), ...panel.shares]).map((row) => data.rows[row].group))];
  const groupColour = (group) => colour(`--series-${groups.indexOf(group) % 8}`);
  const GROUP_SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon"];
  const groupSymbol = (group) => GROUP_SYMBOLS[groups.indexOf(group) % 8];

  const font = () => ({ family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--text") });
  const axis = (more) => ({
    fixedrange: true, gridcolor: colour("--grid"), linecolor: colour("--line"), zeroline: false, tickfont: { color: colour("--muted") },
    automargin: true, ...more,
  });
  const layout = (more) => ({
    font: font(), paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: colour("--page"), bordercolor: colour("--muted"), font: font(), align: "left" }, ...more,
  });
  const PAPER = 660;  // pixels: an A4 page between its margins
  let paper = false;
  const widthOf = (element) => Math.max(paper ? Math.min(PAPER, element.clientWidth) : element.clientWidth, 200);
  const draw = (element, traces, shape) =>
    Plotly.react(element, traces, layout({ width: widthOf(element), ...shape }), { displayModeBar: false, showTips: false });
  const labelRoom = (labels) => 12 + 7.4 * Math.max(...labels.map((label) => label.length));  // pixels, at 13 a letter

  // Ticks of a logarithmic axis, of the densest set whose labels keep `apart` pixels from each other.
  const STEPS = [[1, 1.5, 2, 3, 4, 6, 8], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]];
  const logTicks = (low, high, pixels, apart, name) => {
    const place = (value) => pixels * Math.log(value / low) / Math.log(high / low);
    let inside = [];
    for (const steps of STEPS) {
      inside = [];
      for (let power = -9; power < 10; ++power) for (const step of steps) inside.push(Number((step * 10 ** power).toPrecision(3)));
      inside = inside.filter((value) => place(value) >= 12 && place(value) <= pixels - 6);  // the corner belongs to one axis only
      if (inside.every((value, index) => index === 0 || place(value) - place(inside[index - 1]) >= apart)) break;
    }
    return { tickvals: inside, ticktext: inside.map(name), tickangle: 0 };
  };

  const legend = (list, items) => {
    if (!list) return;
    const svg = "http://www.w3.org/2000/svg";
    const SHAPES = {
      circle: "M7 2a5 5 0 1 0 .01 0z", square: "M2.5 2.5h9v9h-9z", diamond: "M7 1l6 6-6 6-6-6z", "triangle-up": "M7 1.5l6 11H1z",
      "triangle-down": "M7 12.5l6-11H1z", cross: "M5 1h4v4h4v4H9v4H5V9H1V5h4z", x: "M2 4l2-2 3 3 3-3 2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3z",
      star: "M7 0l2 5h5l-4 3 2 6-5-4-5 4 2-6-4-3h5z", hexagon: "M7 1l5.2 3v6L7 13l-5.2-3V4z",
    };
    list.replaceChildren(...items.map(({ name, tone, symbol }) => {
      const item = document.createElement("li"), icon = document.createElementNS(svg, "svg"), path = document.createElementNS(svg, "path");
      icon.setAttribute("viewBox", "0 0 14 14");
      icon.setAttribute("aria-hidden", "true");
      path.setAttribute("d", SHAPES[symbol.replace("-open", "")] || SHAPES.circle);
      path.setAttribute("fill", symbol.endsWith("-open") ? "none" : tone);
      path.setAttribute("stroke", tone);
      path.setAttribute("stroke-width", "1.5");
      icon.append(path);
      item.append(icon, name);
      return item;
    }));
  };

  // Polyhead's bar starts at 1, the best peer; every engine has its mark.
  const drawRatios = (element, panel) => {
    const cases = panel.cases.filter((row) => words().every((word) => searched({ ...panel, name: row.case, engine: row.engines.map((e) => e.name).join(" ") }).includes(word)));
    if (!cases.length) return false;
    const place = cases.map((row, index) => cases.length - index);
    const speeds = cases.flatMap((row) => row.engines.map((engine) => engine.speed));
    const low = Math.min(0.9, ...speeds) * 0.88, high = Math.max(1.1, ...speeds) * 1.12;
    const bars = { x: [], y: [] };
    cases.forEach((row, index) => { bars.x.push(1, row.ratio, null); bars.y.push(place[index], place[index], null); });
    const traces = [{
      ...bars, mode: "lines", line: { color: colour("--engine-polyhead"), width: 13 }, opacity: 0.28, hoverinfo: "skip",
    }];
    const present = ENGINES.concat([...new Set(cases.flatMap((row) => row.engines.map((engine) => engine.engine)))].filter((engine) => !ENGINES.includes(engine)));
    for (const engine of present.slice().reverse()) {  // ours last, on top
      const marks = { x: [], y: [], text: [] };
      cases.forEach((row, index) => {
        const found = row.engines.find((of) => of.engine === engine);
        if (!found) return;
        marks.x.push(found.speed);
        marks.y.push(place[index]);
        const spread = found.q1 && found.q3 ? `<br>middle half ${duration(found.q1)} to ${duration(found.q3)}` : "";
        marks.text.push(`<b>${plain(row.case)}</b><br>${plain(found.name)}: ${duration(found.ms)}, ${three(found.speed)}×${spread}`
          + (engine === data.ours ? `<br>best peer: ${plain(row.best)}` : ""));
      });
      if (marks.x.length) {
        traces.push({
          ...marks, mode: "markers", hoverinfo: "text", name: engine,
          marker: { color: engineColour(engine), symbol: SYMBOLS[engine] || "cross", size: engine === data.ours ? 12 : 8.5, line: { width: 1.5, color: engineColour(engine) } },
        });
      }
    }
    const mean = Math.exp(cases.reduce((sum, row) => sum + Math.log(row.ratio), 0) / cases.length);
    const vertical = (x, line) => ({ type: "line", x0: x, x1: x, y0: 0.4, y1: cases.length + 0.6, layer: "below", line });
    const names = cases.map((row) => row.case), left = labelRoom(names), right = 52;
    draw(element, traces, {
      height: cases.length * 27 + 62, margin: { l: left, r: right, t: 6, b: 46 },
      xaxis: axis({
        type: "log", range: [Math.log10(low), Math.log10(high)], title: { text: "speed, best peer = 1", font: { size: 12, color: colour("--muted") }, standoff: 6 },
        ...logTicks(low, high, widthOf(element) - left - right, 38, (value) => `${value}×`),
      }),
      yaxis: axis({ range: [0.4, cases.length + 0.6], tickvals: place, ticktext: names.map((name) => `${plain(name)} `), tickfont: { color: colour("--text") }, showgrid: false }),
      annotations: cases.map((row, index) => ({
        xref: "paper", x: 1, xanchor: "left", xshift: 4, y: place[index], yanchor: "middle", showarrow: false, text: `${row.ratio.toFixed(2)}×`,
        font: { size: 13, color: colour(row.ratio < 1 ? "--bad" : "--text") },
      })),
      shapes: [vertical(1, { color: colour("--muted"), width: 1.5 }), vertical(mean, { color: colour("--engine-polyhead"), width: 1.5, dash: "dash" })],
    });
    return true;
  };

  const drawRoofline = (element, panel) => {
    const points = panel.points.map((point) => ({ ...point, row: data.rows[point.row] })).filter((point) => matches(point.row));
    if (!points.length) return false;
    const isas = new Set(points.map((point) => point.row.isa));
    // Roofs of the instruction sets that are shown, and of none in particular.
    const known = new Set(data.rows.map((row) => row.isa).filter(Boolean));
    const roofs = panel.roofs.filter((roof) => {
      const named = roof.name.split(/\s+/).filter((word) => known.has(word));
      return !named.length || named.some((isa) => isas.has(isa));
    });
    const flat = roofs.filter((roof) => roof.kind === "arithmetic"), slanted = roofs.filter((roof) => roof.kind === "read");
    const top = Math.max(0, ...flat.map((roof) => roof.rate));
    const xs = points.map((point) => point.x), ys = points.map((point) => point.y);
    const knees = top ? slanted.map((roof) => top / roof.rate) : [];
    const left = Math.min(...xs, ...knees) / (narrow() ? 5 : 2.5), right = Math.max(...xs, ...knees) * 2.2;
    const bottom = Math.min(...ys, ...slanted.map((roof) => roof.rate * Math.min(...xs))) / 2, ceiling = Math.max(top, ...ys) * 2;
    const traces = [], labels = [];
    const shares = panel.shares.map((row) => data.rows[row]).filter(matches);
    const plotHeight = narrow() ? 310 : 380, rows = groups.filter((group) => shares.some((row) => row.group === group));
    for (const roof of slanted) {
      const end = top ? Math.min(right, top / roof.rate) : right;
      const begin = Math.max(left, bottom / roof.rate);
      traces.push({ x: [begin, end], y: [begin * roof.rate, end * roof.rate], mode: "lines", line: { color: colour("--muted"), width: 1.5 }, hoverinfo: "skip" });
      labels.push({ begin, end, rate: roof.rate, text: `${plain(roof.name)} ${three(roof.rate)} GB/s`, slanted: true });
    }
    const fastest = Math.max(0, ...slanted.map((roof) => roof.rate));
    for (const roof of flat) {
      const begin = fastest ? Math.max(left, roof.rate / fastest) : left;
      traces.push({ x: [begin, right], y: [roof.rate, roof.rate], mode: "lines", line: { color: colour("--muted"), width: 1.5 }, hoverinfo: "skip" });
      labels.push({ x: right, y: roof.rate, text: `${plain(roof.name)} ${three(roof.rate)} GFLOP/s`, slanted: false });
    }
    for (const group of groups) {
      const marker = { color: groupColour(group), symbol: groupSymbol(group), size: 9, opacity: 0.85, line: { width: 1, color: colour("--surface") } };
      const describe = (row) => [
        `<b>${plain(row.name)}</b> ${plain(row.isa)}`,
        [row.gflops && `${three(row.gflops)} GFLOP/s`, row.gbps && `${three(row.gbps)} GB/s`, row.gflops && row.gbps && `${three(row.gflops / row.gbps)} operations a byte`].filter(Boolean).join(", "),
        duration(row.ms) + (row.share === null ? "" : `, ${(row.share * 100).toFixed(0)} % of ${plain(row.bound || "its bound")}`),
      ].join("<br>");
      const of = points.filter((point) => point.row.group === group), shared = shares.filter((row) => row.group === group);
      if (of.length) {
        traces.push({ x: of.map((point) => point.x), y: of.map((point) => point.y), text: of.map((point) => describe(point.row)), mode: "markers", hoverinfo: "text", marker });
      }
      if (shared.length) {
        traces.push({
          x: shared.map((row) => row.share * 100), y: shared.map(() => rows.length - rows.indexOf(group)), text: shared.map(describe), xaxis: "x2", yaxis: "y2",
          mode: "markers", hoverinfo: "text", marker,
        });
      }
    }
    // Labels lie on their lines: those of flat ones at the right end, moved up where two would touch; those of slanted ones along
    // them, at one place and another in turn, so that near lines can be told apart.
    const margin = labelRoom([...rows, "10000   "]), plotWidth = widthOf(element) - margin - 14;
    const acrossPixel = (x) => plotWidth * Math.log(x / left) / Math.log(right / left);
    const pixel = (y) => plotHeight * Math.log(y / bottom) / Math.log(ceiling / bottom);
    const angle = Math.atan((plotHeight / Math.log(ceiling / bottom)) / (plotWidth / Math.log(right / left)));
    let last = -Infinity;
    for (const label of labels.filter((of) => !of.slanted).sort((a, b) => a.y - b.y)) {
      const at = Math.max(pixel(label.y) + 9, last + 15);
      Object.assign(label, { xanchor: "right", angle: 0, across: 0, up: at - pixel(label.y) });
      last = at;
    }
    labels.filter((of) => of.slanted).sort((a, b) => a.rate - b.rate).forEach((label, index) => {
      const length = Math.hypot(acrossPixel(label.end) - acrossPixel(label.begin), pixel(label.end * label.rate) - pixel(label.begin * label.rate));
      const half = Math.min(0.5, (label.text.length * 3.1 + 16) / length);
      const part = index % 2 ? Math.max(half, Math.min(1 - half, 0.66)) : half;
      label.x = label.begin * (label.end / label.begin) ** part;
      Object.assign(label, { y: label.x * label.rate, xanchor: "center", angle: -angle * 180 / Math.PI, across: -8 * Math.sin(angle), up: 8 * Math.cos(angle) });
    });
    const strip = rows.length ? rows.length * 24 + 56 : 0;
    const height = plotHeight + 64 + strip, share = (pixels) => Math.max(0, pixels / (height - 56));
    const title = (text) => ({ text, font: { size: 12, color: colour("--muted") }, standoff: 4 });
    draw(element, traces, {
      height, margin: { l: margin, r: 14, t: 8, b: 48 },
      xaxis: axis({ type: "log", range: [Math.log10(left), Math.log10(right)], anchor: "y", automargin: false, title: title("operations a byte"), ...logTicks(left, right, plotWidth, 40, String) }),
      yaxis: axis({
        type: "log", range: [Math.log10(bottom), Math.log10(ceiling)], domain: [1 - share(plotHeight), 1], automargin: false, title: title("GFLOP/s"),
        ...logTicks(bottom, ceiling, plotHeight, 26, String),
      }),
      ...(rows.length ? {
        xaxis2: axis({
          range: [0, Math.max(105, ...shares.map((row) => row.share * 105))], anchor: "y2", automargin: false, title: title("share of its bound"),
          tickvals: [0, 25, 50, 75, 100], ticktext: ["0", "25 %", "50 %", "75 %", "100 %"],
        }),
        yaxis2: axis({ range: [0.4, rows.length + 0.6], domain: [0, share(rows.length * 24)], automargin: false, tickvals: rows.map((_, index) => rows.length - index), ticktext: rows.map((row) => `${plain(row)} `),
          tickfont: { color: colour("--text") }, showgrid: false }),
        shapes: [{ type: "line", xref: "x2", yref: "y2", x0: 100, x1: 100, y0: 0.4, y1: rows.length + 0.6, line: { color: colour("--muted"), width: 1.5 } }],
      } : {}),
      annotations: labels.map((label) => ({
        x: Math.log10(label.x), y: Math.log10(label.y), text: label.text, xanchor: label.xanchor, yanchor: "middle", showarrow: false,
        xshift: label.across, yshift: label.up, textangle: label.angle, font: { size: 11.5, color: colour("--muted") },
      })),
    });
    return true;
  };

  const drawLine = (element, line) => {
    const byRun = !byId("spacing") || byId("spacing").value === "run";
    const x = line.points.map((point, index) => (byRun ? index + 1 : point.date));
    const times = line.points.map((point) => point.ms);
    const scale = [["s", 1e3], ["ms", 1], ["µs", 1e-3], ["ns", 1e-6]].find(([, size]) => Math.max(...times) >= size) || ["ns", 1e-6];
    const y = times.map((ms) => ms / scale[1]);
    const sorted = y.slice().sort((a, b) => a - b), middle = sorted[sorted.length >> 1];
    // At least a tenth of the level up and down, so that noise looks like noise.
    const low = Math.min(sorted[0], middle * 0.9), high = Math.max(sorted[sorted.length - 1], middle * 1.1), room = (high - low) * 0.12;
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
        type: "data", symmetric: false, thickness: 1.2, width: 0, color: tone,
        array: line.points.map((point, index) => (point.q3 === null ? 0 : Math.max(0, point.q3 / scale[1] - y[index]))),
        arrayminus: line.points.map((point, index) => (point.q1 === null ? 0 : Math.max(0, y[index] - point.q1 / scale[1]))),
      },
    } : {};
    const traces = [
      { ...levels, mode: "lines", line: { color: colour("--muted"), width: 2 }, hoverinfo: "skip" },
      {
        x, y, mode: "markers", hoverinfo: "text", marker: { color: tone, size: 7 }, ...spread,
        text: line.points.map((point) => `<b>${duration(point.ms)}</b><br>${point.date.replace("T", " ").slice(0, 16)} ${plain(point.commit)}<br>${plain(point.file)}`),
      },
    ];
    const marks = line.changes.map((change) => ({
      at: byRun ? change.index + 0.5 : line.points[change.index].date, change: change.change,
    }));
    const ends = [...new Set([0, ...line.changes.map((change) => change.index), line.points.length - 1])];
    // Date labels only where there is room for them: about 80 pixels each, the ends first.
    const room_x = widthOf(element) - 100, at = (index) => room_x * index / Math.max(1, line.points.length - 1);
    const kept = [];
    for (const index of [0, line.points.length - 1, ...ends]) if (kept.every((other) => Math.abs(at(other) - at(index)) >= 84)) kept.push(index);
    draw(element, traces, {
      height: 230, margin: { l: 8, r: 38, t: 22, b: 30 },
      xaxis: axis(byRun ? {
        range: [0.5 - line.points.length * 0.02, line.points.length + 0.5 + line.points.length * 0.02], tickvals: kept.map((index) => index + 1),
        ticktext: kept.map((index) => line.points[index].date.slice(0, 10)), showgrid: false, tickangle: 0,
      } : { type: "date", nticks: 4, showgrid: false, tickangle: 0 }),
      yaxis: axis({ range: [low - room, high + room], ticksuffix: ` ${scale[0]}`, nticks: 5 }),
      shapes: marks.map((mark) => ({
        type: "line", x0: mark.at, x1: mark.at, yref: "paper", y0: 0, y1: 1, line: { color: colour(mark.change > 0 ? "--bad" : "--good"), width: 1.5, dash: "dot" },
      })),
      annotations: marks.map((mark) => ({
        x: mark.at, yref: "paper", y: 1, yanchor: "bottom", showarrow: false, text: percent(mark.change), font: { size: 12, color: colour(mark.change > 0 ? "--bad" : "--good") },
      })),
    });
    return true;
  };

  const PAGE_OF_LINES = 6;
  let linesShown = PAGE_OF_LINES;
  const showLines = () => {
    const grid = byId("timelines");
    if (!grid) return;
    const found = data.lines.filter((line) => matches({ ...line, group: line.name.split("/")[0] }));
    const frames = found.slice(0, linesShown).map((line) => {
      const frame = document.createElement("figure"), title = document.createElement("h3"), about = document.createElement("p"), chart = document.createElement("div");
      frame.className = "panel";
      title.textContent = line.name;
      about.textContent = [data.machines > 1 ? line.machine : "", line.engine === "Polyhead" ? "" : line.engine, line.isa, threadCount(line.threads), `${line.points.length} runs`].filter(Boolean).join(", ");
      const last = line.changes[line.changes.length - 1];
      if (last) {
        const badge = document.createElement("span"), slower = last.change > 0;
        badge.className = `badge ${slower ? "slower" : "faster"}`;
        badge.textContent = `${percent(last.change)} ${slower ? "slower" : "faster"}`;
        about.append(" ", badge);
      }
      chart.className = "chart";
      chart.setAttribute("role", "img");
      chart.setAttribute("aria-label", `${line.name}: ${line.points.length} runs, last ${duration(line.points[line.points.length - 1].ms)}, `
        + (last ? `last change ${percent(last.change)} on ${line.points[last.index].date.slice(0, 10)}` : "no change of level"));
      frame.append(title, about, chart);
      return [frame, chart, line];
    });
    grid.querySelectorAll(".chart").forEach((chart) => Plotly.purge(chart));
    grid.replaceChildren(...frames.map(([frame]) => frame));
    frames.forEach(([, chart, line]) => drawLine(chart, line));
    byId("timelines-empty").hidden = found.length > 0;
    const more = byId("timelines-more");
    more.hidden = found.length <= linesShown;
    more.textContent = `Show ${Math.min(PAGE_OF_LINES, found.length - linesShown)} more of ${found.length} series`;
  };

  const showPanels = () => {
    for (const [kind, panels, drawn] of [["ratio", data.ratios, drawRatios], ["roofline", data.rooflines, drawRoofline]]) {
      for (const frame of document.querySelectorAll(`[data-panel="${kind}"]`)) {
        const panel = panels[Number(frame.dataset.index)];
        frame.hidden = false;  // a hidden frame has no width to draw in
        frame.hidden = !(passes({ machine: panel.machine, threads: panel.threads, isa: kind === "ratio" ? panel.isa : undefined }) && drawn(frame.querySelector(".chart"), panel));
      }
    }
    const engines = new Map(data.ratios.flatMap((panel) => panel.cases.flatMap((row) => row.engines.map((engine) => [engine.engine, engine.name]))));
    legend(byId("engine-legend"), [...engines].sort(([a], [b]) => ENGINES.indexOf(a) - ENGINES.indexOf(b))
      .map(([engine, name]) => ({ name, tone: engineColour(engine), symbol: SYMBOLS[engine] || "cross" })));
    legend(byId("group-legend"), groups.map((group) => ({ name: group, tone: groupColour(group), symbol: groupSymbol(group) })));
  };

  // ---- the table

  const body = byId("table").tBodies[0];
  const rows = [...body.rows].map((element) => ({ element, item: data.rows[Number(element.dataset.row)] }));
  const heads = [...document.querySelectorAll("#table thead button")];
  const keys = heads.map((head) => head.dataset.sort);
  const values = rows.map(({ element }) => [...element.cells].map((cell) => cell.dataset.value));
  rows.forEach((row, index) => { row.values = values[index]; });
  const pageOfRows = () => (narrow() ? 15 : 50);
  let rowsShown = pageOfRows(), order = { key: null, down: false };

  const compare = (left, right, numeric) => {
    if (left === undefined || right === undefined) return left === right ? 0 : left === undefined ? Infinity : -Infinity;
    return numeric ? Number(left) - Number(right) : left.localeCompare(right, "en", { numeric: true });
  };
  const sortRows = (key, down) => {
    const column = keys.indexOf(key), numeric = heads[column].dataset.kind === "number";
    order = { key, down };
    rows.sort((a, b) => {
      const found = compare(a.values[column], b.values[column], numeric);
      return Math.abs(found) === Infinity ? Math.sign(found) : down ? -found : found;  // what has no value comes last either way
    });
    body.append(...rows.map((row) => row.element));
    heads.forEach((head) => head.closest("th").setAttribute("aria-sort", head.dataset.sort !== key ? "none" : down ? "descending" : "ascending"));
    byId("sort-by").value = key;
  };
  const showRows = () => {
    let found = 0;
    for (const row of rows) row.element.hidden = !(matches(row.item) && ++found <= rowsShown);
    byId("table-empty").hidden = found > 0;
    byId("filter-count").textContent = found === rows.length ? `${found} results` : `${found} of ${rows.length} results`;
    const more = byId("table-more");
    more.hidden = found <= rowsShown;
    more.textContent = `Show all ${found} results`;
  };

  heads.forEach((head) => head.addEventListener("click", () => {
    sortRows(head.dataset.sort, order.key === head.dataset.sort ? !order.down : false);
    showRows();
  }));
  byId("sort-by").addEventListener("change", (event) => { sortRows(event.target.value, order.down); showRows(); });
  byId("sort-direction").addEventListener("click", () => { sortRows(order.key || keys[0], !order.down); showRows(); });
  byId("table-more").addEventListener("click", () => { rowsShown = Infinity; showRows(); });

  // ---- events

  const showCharts = () => { showPanels(); showLines(); };
  const filtered = () => { rowsShown = pageOfRows(); linesShown = PAGE_OF_LINES; writeAddress(); showRows(); showCharts(); };
  let waiting = 0;
  const soon = (work, after) => { clearTimeout(waiting); waiting = setTimeout(work, after); };
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("reset", () => setTimeout(filtered));
  selects.forEach((select) => select.addEventListener("change", filtered));
  search.addEventListener("input", () => soon(filtered, 150));
  window.addEventListener("hashchange", () => { readAddress(); filtered(); });
  if (byId("spacing")) byId("spacing").addEventListener("change", showLines);
  if (byId("timelines-more")) byId("timelines-more").addEventListener("click", () => { linesShown += PAGE_OF_LINES; showLines(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showCharts);
  let width = document.documentElement.clientWidth;
  window.addEventListener("resize", () => soon(() => {
    if (width === document.documentElement.clientWidth) return;  // a phone's address bar comes and goes
    width = document.documentElement.clientWidth;
    showCharts();
  }, 120));
  // On paper: light colours (page.css), every row and open details.
  const print = matchMedia("print");
  const closed = () => [...document.querySelectorAll("details:not([open])")];
  let opened = [];
  const onPaper = (printing) => {
    if (printing === paper) return;
    paper = printing;
    if (printing) {
      opened = closed();
      opened.forEach((details) => { details.open = true; });
      rowsShown = Infinity;
    } else {
      opened.forEach((details) => { details.open = false; });
      rowsShown = pageOfRows();
    }
    showRows();
    showCharts();
  };
  print.addEventListener("change", (event) => onPaper(event.matches));
  window.addEventListener("beforeprint", () => onPaper(true));
  window.addEventListener("afterprint", () => onPaper(false));

  data.machines = new Set(data.rows.map((row) => row.machine)).size;
  readAddress();
  showRows();
  showCharts();
  document.documentElement.dataset.ready = "true";
})();
