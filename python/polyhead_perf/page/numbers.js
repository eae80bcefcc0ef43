// Numbers as people write them. The scripts of this folder are one program, in the order of report_page.SCRIPTS.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const narrow = () => document.documentElement.clientWidth < 768;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const three = (value) => {
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(digits, 8));
};
const duration = (ms) => {
  for (const [unit, scale] of [["s", 1e3], ["ms", 1], ["µs", 1e-3]])
    if (ms >= scale) return `${three(ms / scale)} ${unit}`;
  return `${three(ms * 1e6)} ns`;
};
const percent = (change) => `${change >= 0 ? "+" : "−"}${Math.abs(change * 100).toFixed(1)} %`;
const threadCount = (count) => `${count} thread${count === 1 ? "" : "s"}`;
