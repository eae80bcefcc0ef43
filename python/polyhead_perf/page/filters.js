// Filters: the same for charts and table, kept in the address so that a view can be sent on.

const selects = [...document.querySelectorAll("select[data-filter]")];
const search = byId("filter-text");
const searched = (item) => [item.name, item.engine, item.machine, item.isa, item.threads ? threadCount(item.threads) : "",
                            item.bound, item.commit, item.date, item.problem, item.part]
                               .filter(Boolean)
                               .join(" ")
                               .toLowerCase();
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
  for (const select of selects)
    if (select.value) state.set(select.dataset.filter, select.value);
  if (search.value) state.set("text", search.value);
  history.replaceState(null, "", state.toString() ? `#${state}` : location.pathname + location.search);
};
