"use strict";

// Text of models and data sets is set as textContent only, never as markup.

const byId = (id) => document.getElementById(id);
const data = (id) => (byId(id) ? JSON.parse(byId(id).textContent) : null);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 0.0005) return value.toExponential(1).replace("-", "−");
  return String(+value.toPrecision(digits)).replace("-", "−");
}

// ---- theme ----

function setUpTheme() {
  const button = byId("theme");
  const root = document.documentElement;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme || (systemDark.matches ? "dark" : "light");
  const show = () => button.setAttribute("aria-label", current() === "dark" ? "Use light colours" : "Use dark colours");
  button.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    show();
  });
  show();
}

// ---- a card that follows the pointer or the focus ----

const card = make("div", { id: "card", role: "tooltip", hidden: "" });

function showCard(place, ...content) {
  card.replaceChildren(...content);
  card.hidden = false;
  const size = card.getBoundingClientRect();
  const left = Math.min(Math.max(8, place.x + 14), document.documentElement.clientWidth - size.width - 8);
  const above = place.y - size.height - 12;
  card.style.left = `${left + scrollX}px`;
  card.style.top = `${(above < 8 ? place.bottom + 12 : above) + scrollY}px`;
}

const hideCard = () => (card.hidden = true);

function numbersTable(rows) {
  const body = rows.map(([label, value, kind]) =>
    make("tr", { class: kind || "" }, make("th", { scope: "row", text: label }), make("td", { text: value })));
  return make("table", {}, make("tbody", {}, ...body));
}

// ---- charts: read-outs ----

function setUpChart(figure, chart) {
  const svg = figure.querySelector("svg");
  const [left, top, width, height] = chart.box;
  const steps = stepsOf(chart);
  const cursor = document.createElementNS(SVG, "path");
  cursor.setAttribute("class", "cursor");
  svg.append(cursor);
  let at = steps.length - 1;

  function show(index, pointer) {
    at = Math.min(Math.max(0, index), steps.length - 1);
    const x = left + ((steps[at] - chart.x[0]) / (chart.x[1] - chart.x[0])) * width;
    cursor.setAttribute("d", `M${x} ${top}V${top + height}`);
    const box = svg.getBoundingClientRect();
    const place = pointer || { x: box.left + (x / chart.size[0]) * box.width, y: box.top, bottom: box.bottom };
    const heading = make("p", { class: "where", text: `${chart.xLabel || "step"} ${steps[at]}` });
    showCard(place, heading, numbersTable(readOut(chart, steps[at], at)));
  }

  function hide() {
    cursor.setAttribute("d", "");
    hideCard();
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.size[0];
    const step = chart.x[0] + ((x - left) / width) * (chart.x[1] - chart.x[0]);
    show(nearest(steps, step, chart.kind === "heat"), { x: event.clientX, y: event.clientY, bottom: event.clientY });
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("focus", () => svg.matches(":focus-visible") && show(at));
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 };
    if (event.key === "Escape") hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
}

function stepsOf(chart) {
  if (chart.steps) return chart.steps;
  return [...new Set(chart.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
}

function nearest(steps, wanted, startsBin) {
  let low = 0;
  let high = steps.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (steps[middle] <= wanted) low = middle;
    else high = middle - 1;
  }
  const closer = low + 1 < steps.length && steps[low + 1] - wanted < wanted - steps[low];
  return closer && !startsBin ? low + 1 : low;
}

function readOut(chart, step, index) {
  if (chart.kind === "stack") {
    const parts = chart.layers.map((layer, i) => [layer.label, `${number(layer.y[index])} ${chart.unit}`, `key c${i % 8}`]);
    const whole = chart.layers.reduce((sum, layer) => sum + layer.y[index], 0);
    return [...parts.reverse(), ["total", `${number(whole)} ${chart.unit}`, "strong"]];
  }
  if (chart.kind === "heat") {
    const cells = chart.cells[index].map((share, i) => [`${chart.edges[i]} to ${chart.edges[i + 1]}`, percent(share), ""]);
    return cells.reverse();
  }
  const value = (y) => (chart.percent ? percent(y) : number(y, 4));
  return chart.curves.flatMap((curve) => {
    const i = curve.x.indexOf(step);
    if (i < 0) return [];
    const spread = curve.spread ? ` ± ${value(curve.spread[i])}` : "";
    const rows = [[curve.label, value(curve.y[i]) + spread, `key c${curve.colour}`]];
    if (curve.smooth) rows.push(["smoothed", value(curve.smooth[i]), "faint"]);
    return rows;
  });
}

const percent = (share) => `${(100 * share).toFixed(1)}%`;

// ---- start ----

document.body.append(card);
setUpTheme();
const charts = data("chart-data") || {};
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const chart = charts[figure.dataset.chart];
  if (chart && chart.kind) setUpChart(figure, chart);
}
