// What the reader does.

const showCharts = () => {
  showPanels();
  showLines();
};
const filtered = () => {
  rowsShown = pageOfRows();
  linesShown = PAGE_OF_LINES;
  writeAddress();
  showRows();
  showCharts();
};
let waiting = 0;
const soon = (work, after) => {
  clearTimeout(waiting);
  waiting = setTimeout(work, after);
};
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("reset", () => setTimeout(filtered));
selects.forEach((select) => select.addEventListener("change", filtered));
search.addEventListener("input", () => soon(filtered, 150));
window.addEventListener("hashchange", () => {
  readAddress();
  filtered();
});
if (byId("spacing")) byId("spacing").addEventListener("change", showLines);
if (byId("timelines-more"))
  byId("timelines-more").addEventListener("click", () => {
    linesShown += PAGE_OF_LINES;
    showLines();
  });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showCharts);
let width = document.documentElement.clientWidth;
window.addEventListener("resize", () => soon(() => {
                                    if (width === document.documentElement.clientWidth)
                                      return;  // a phone's address bar comes and goes
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
    opened.forEach((details) => {
      details.open = true;
    });
    rowsShown = Infinity;
  } else {
    opened.forEach((details) => {
      details.open = false;
    });
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
