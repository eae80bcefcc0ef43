// What all charts share: colours of the scheme, plotly's settings for a page that scrolls under a finger, axes, legends. Every
// text of a result file reaches the page as a text node, or escaped for plotly's small markup (plain()).

const ENGINES = ["polyhead", "torch", "torch-module", "torch-sdpa", "vllm", "vllm+pack", "onnxruntime", "openvino"];
const SYMBOLS = {
  polyhead: "circle",
  torch: "square",
  "torch-module": "square-open",
  "torch-sdpa": "square",
  vllm: "triangle-up",
  "vllm+pack": "triangle-up-open",
  onnxruntime: "diamond",
  openvino: "triangle-down",
};
const engineColour = (engine) => colour(`--engine-${ENGINES.includes(engine) ? engine.replace("+", "-") : "other"}`);
// Of the rooflines: each kind of benchmark has its colour and mark in all of them.
const groups = [...new Set(data.rooflines.flatMap((panel) => [...panel.points.map((point) => point.row), ...panel.shares])
                               .map((row) => data.rows[row].group))];
const groupColour = (group) => colour(`--series-${groups.indexOf(group) % 8}`);
const GROUP_SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon"];
const groupSymbol = (group) => GROUP_SYMBOLS[groups.indexOf(group) % 8];

const font = () => ({ family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--text") });
const axis = (more) => ({
  fixedrange: true,
  gridcolor: colour("--grid"),
  linecolor: colour("--line"),
  zeroline: false,
  tickfont: { color: colour("--muted") },
  automargin: true,
  ...more,
});
const layout = (more) => ({
  font: font(),
  paper_bgcolor: "rgba(0,0,0,0)",
  plot_bgcolor: "rgba(0,0,0,0)",
  dragmode: false,
  showlegend: false,
  hovermode: "closest",
  hoverlabel: { bgcolor: colour("--page"), bordercolor: colour("--muted"), font: font(), align: "left" },
  ...more,
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
    for (let power = -9; power < 10; ++power)
      for (const step of steps) inside.push(Number((step * 10 ** power).toPrecision(3)));
    inside = inside.filter((value) => place(value) >= 12 && place(value) <= pixels - 6);  // the corner belongs to one axis only
    if (inside.every((value, index) => index === 0 || place(value) - place(inside[index - 1]) >= apart)) break;
  }
  return { tickvals: inside, ticktext: inside.map(name), tickangle: 0 };
};

const legend = (list, items) => {
  if (!list) return;
  const svg = "http://www.w3.org/2000/svg";
  const SHAPES = {
    circle: "M7 2a5 5 0 1 0 .01 0z",
    square: "M2.5 2.5h9v9h-9z",
    diamond: "M7 1l6 6-6 6-6-6z",
    "triangle-up": "M7 1.5l6 11H1z",
    "triangle-down": "M7 12.5l6-11H1z",
    cross: "M5 1h4v4h4v4H9v4H5V9H1V5h4z",
    x: "M2 4l2-2 3 3 3-3 2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3z",
    star: "M7 0l2 5h5l-4 3 2 6-5-4-5 4 2-6-4-3h5z",
    hexagon: "M7 1l5.2 3v6L7 13l-5.2-3V4z",
  };
  list.replaceChildren(...items.map(({ name, tone, symbol }) => {
    const item = document.createElement("li"), icon = document.createElementNS(svg, "svg"),
          path = document.createElementNS(svg, "path");
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
