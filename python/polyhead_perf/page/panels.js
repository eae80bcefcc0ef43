// Which charts are shown.

const PAGE_OF_LINES = 6;
let linesShown = PAGE_OF_LINES;
const showLines = () => {
  const grid = byId("timelines");
  if (!grid) return;
  const found = data.lines.filter((line) => matches({...line, group: line.name.split("/")[0] }));
  const frames = found.slice(0, linesShown).map((line) => {
    const frame = document.createElement("figure"), title = document.createElement("h3"), about = document.createElement("p"),
          chart = document.createElement("div");
    frame.className = "panel";
    title.textContent = line.name;
    about.textContent = [
      data.machines > 1 ? line.machine : "", line.engine === "Polyhead" ? "" : line.engine, line.isa, threadCount(line.threads),
      `${line.points.length} runs`
    ].filter(Boolean).join(", ");
    const last = line.changes[line.changes.length - 1];
    if (last) {
      const badge = document.createElement("span"), slower = last.change > 0;
      badge.className = `badge ${slower ? "slower" : "faster"}`;
      badge.textContent = `${percent(last.change)} ${slower ? "slower" : "faster"}`;
      about.append(" ", badge);
    }
    chart.className = "chart";
    chart.setAttribute("role", "img");
    chart.setAttribute(
        "aria-label",
        `${line.name}: ${line.points.length} runs, last ${duration(line.points[line.points.length - 1].ms)}, ` +
            (last ? `last change ${percent(last.change)} on ${line.points[last.index].date.slice(0, 10)}` :
                    "no change of level"));
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
  for (const [kind, panels, drawn] of [["ratio", data.ratios, drawRatios], ["roofline", data.rooflines, drawRoofline],
                                       ["sweep", data.sweeps, drawSweep]]) {
    for (const frame of document.querySelectorAll(`[data-panel="${kind}"]`)) {
      const panel = panels[Number(frame.dataset.index)];
      frame.hidden = false;  // a hidden frame has no width to draw in
      frame.hidden =
          !(passes({ machine: panel.machine, threads: panel.threads, isa: kind === "roofline" ? undefined : panel.isa }) &&
            drawn(frame.querySelector(".chart"), panel));
    }
  }
  const engines = new Map(
      data.ratios.flatMap((panel) => panel.cases.flatMap((row) => row.engines.map((engine) => [engine.engine, engine.name]))));
  legend(
      byId("engine-legend"),
      [...engines]
          .sort(([a], [b]) => ENGINES.indexOf(a) - ENGINES.indexOf(b))
          .map(([engine, name]) => ({ name, tone: engineColour(engine), symbol: SYMBOLS[engine] || "cross" })));
  legend(byId("group-legend"), groups.map((group) => ({ name: group, tone: groupColour(group), symbol: groupSymbol(group) })));
};
