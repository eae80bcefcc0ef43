// Rooflines, and the share of its bound that each benchmark reaches.

const drawRoofline = (element, panel) => {
  const points = panel.points.map((point) => ({...point, row: data.rows[point.row] })).filter((point) => matches(point.row));
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
    traces.push({
      x: [begin, end],
      y: [begin * roof.rate, end * roof.rate],
      mode: "lines",
      line: { color: colour("--muted"), width: 1.5 },
      hoverinfo: "skip"
    });
    labels.push({ begin, end, rate: roof.rate, text: `${plain(roof.name)} ${three(roof.rate)} GB/s`, slanted: true });
  }
  const fastest = Math.max(0, ...slanted.map((roof) => roof.rate));
  for (const roof of flat) {
    const begin = fastest ? Math.max(left, roof.rate / fastest) : left;
    traces.push({
      x: [begin, right],
      y: [roof.rate, roof.rate],
      mode: "lines",
      line: { color: colour("--muted"), width: 1.5 },
      hoverinfo: "skip"
    });
    labels.push({ x: right, y: roof.rate, text: `${plain(roof.name)} ${three(roof.rate)} GFLOP/s`, slanted: false });
  }
  for (const group of groups) {
    const marker = {
      color: groupColour(group),
      symbol: groupSymbol(group),
      size: 9,
      opacity: 0.85,
      line: { width: 1, color: colour("--surface") }
    };
    const describe =
        (row) => [`<b>${plain(row.name)}</b> ${plain(row.isa)}`,
                  [
                    row.gflops && `${three(row.gflops)} GFLOP/s`, row.gbps && `${three(row.gbps)} GB/s`,
                    row.gflops && row.gbps && `${three(row.gflops / row.gbps)} operations a byte`
                  ].filter(Boolean)
                      .join(", "),
                  duration(row.ms) +
                      (row.share === null ? "" : `, ${(row.share * 100).toFixed(0)} % of ${plain(row.bound || "its bound")}`),
    ].join("<br>");
    const of = points.filter((point) => point.row.group === group), shared = shares.filter((row) => row.group === group);
    if (of.length) {
      traces.push({
        x: of.map((point) => point.x),
        y: of.map((point) => point.y),
        text: of.map((point) => describe(point.row)),
        mode: "markers",
        hoverinfo: "text",
        marker
      });
    }
    if (shared.length) {
      traces.push({
        x: shared.map((row) => row.share * 100),
        y: shared.map(() => rows.length - rows.indexOf(group)),
        text: shared.map(describe),
        xaxis: "x2",
        yaxis: "y2",
        mode: "markers",
        hoverinfo: "text",
        marker,
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
    const length = Math.hypot(
        acrossPixel(label.end) - acrossPixel(label.begin), pixel(label.end * label.rate) - pixel(label.begin * label.rate));
    const half = Math.min(0.5, (label.text.length * 3.1 + 16) / length);
    const part = index % 2 ? Math.max(half, Math.min(1 - half, 0.66)) : half;
    label.x = label.begin * (label.end / label.begin) ** part;
    Object.assign(label, {
      y: label.x * label.rate,
      xanchor: "center",
      angle: -angle * 180 / Math.PI,
      across: -8 * Math.sin(angle),
      up: 8 * Math.cos(angle)
    });
  });
  const strip = rows.length ? rows.length * 24 + 56 : 0;
  const height = plotHeight + 64 + strip, share = (pixels) => Math.max(0, pixels / (height - 56));
  const title = (text) => ({ text, font: { size: 12, color: colour("--muted") }, standoff: 4 });
  draw(element, traces, {
    height,
    margin: { l: margin, r: 14, t: 8, b: 48 },
    xaxis: axis({
      type: "log",
      range: [Math.log10(left), Math.log10(right)],
      anchor: "y",
      automargin: false,
      title: title("operations a byte"),
      ...logTicks(left, right, plotWidth, 40, String)
    }),
    yaxis: axis({
      type: "log",
      range: [Math.log10(bottom), Math.log10(ceiling)],
      domain: [1 - share(plotHeight), 1],
      automargin: false,
      title: title("GFLOP/s"),
      ...logTicks(bottom, ceiling, plotHeight, 26, String),
    }),
    ...(rows.length ? {
      xaxis2: axis({
        range: [0, Math.max(105, ...shares.map((row) => row.share * 105))],
        anchor: "y2",
        automargin: false,
        title: title("share of its bound"),
        tickvals: [0, 25, 50, 75, 100],
        ticktext: ["0", "25 %", "50 %", "75 %", "100 %"],
      }),
      yaxis2: axis({
        range: [0.4, rows.length + 0.6],
        domain: [0, share(rows.length * 24)],
        automargin: false,
        tickvals: rows.map((_, index) => rows.length - index),
        ticktext: rows.map((row) => `${plain(row)} `),
        tickfont: { color: colour("--text") },
        showgrid: false
      }),
      shapes: [{
        type: "line",
        xref: "x2",
        yref: "y2",
        x0: 100,
        x1: 100,
        y0: 0.4,
        y1: rows.length + 0.6,
        line: { color: colour("--muted"), width: 1.5 }
      }],
    } :
                      {}),
    annotations: labels.map((label) => ({
                              x: Math.log10(label.x),
                              y: Math.log10(label.y),
                              text: label.text,
                              xanchor: label.xanchor,
                              yanchor: "middle",
                              showarrow: false,
                              xshift: label.across,
                              yshift: label.up,
                              textangle: label.angle,
                              font: { size: 11.5, color: colour("--muted") },
                            })),
  });
  return true;
};
