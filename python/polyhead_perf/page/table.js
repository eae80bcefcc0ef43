// The table: sorting, paging.

const body = byId("table").tBodies[0];
const rows = [...body.rows].map((element) => ({ element, item: data.rows[Number(element.dataset.row)] }));
const heads = [...document.querySelectorAll("#table thead button")];
const keys = heads.map((head) => head.dataset.sort);
const values = rows.map(({ element }) => [...element.cells].map((cell) => cell.dataset.value));
rows.forEach((row, index) => {
  row.values = values[index];
});
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
  heads.forEach(
      (head) => head.closest("th").setAttribute(
          "aria-sort",
          head.dataset.sort !== key ? "none" :
              down                  ? "descending" :
                                      "ascending"));
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
byId("sort-by").addEventListener("change", (event) => {
  sortRows(event.target.value, order.down);
  showRows();
});
byId("sort-direction").addEventListener("click", () => {
  sortRows(order.key || keys[0], !order.down);
  showRows();
});
byId("table-more").addEventListener("click", () => {
  rowsShown = Infinity;
  showRows();
});
