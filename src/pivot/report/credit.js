"use strict";

// Token credit: an overview with one strip per measure, and the tokens of one response coloured by each of them.

function setUpCredit(root, { measures, responses }) {
  const state = { response: responses[0], byRank: false };
  const tabs = make("div", { class: "answers", role: "tablist", "aria-label": "Responses" });
  const stage = make("div", { id: "stage", class: "credit-stage", role: "tabpanel" });
  tabs.append(...responses.map((response, i) => responseTab(response, i, () => choose(response))));
  tabs.addEventListener("keydown", (event) => {
    const at = responses.indexOf(state.response);
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: responses.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(responses[Math.min(Math.max(0, moves[event.key]), responses.length - 1)]);
    tabs.children[responses.indexOf(state.response)].focus();
  });

  function choose(response) {
    state.response = response;
    for (const [i, tab] of [...tabs.children].entries()) {
      tab.setAttribute("aria-selected", responses[i] === response);
      tab.tabIndex = responses[i] === response ? 0 : -1;
    }
    const shades = new Map(measures.map((measure) => [measure, shadesOf(response, measure, state.byRank)]));
    const cards = measures.map((measure) => measureCard(response, measure, shades.get(measure), measures));
    stage.replaceChildren(overview(response, measures, shades), make("div", { class: "measures" }, ...cards));
    stage.setAttribute("aria-label", `Response ${responses.indexOf(response) + 1}`);
  }

  root.append(tabs, make("div", { class: "controls" }, scaleSwitch(state, () => choose(state.response))), stage);
  choose(responses[0]);
}

function responseTab(response, index, chosen) {
  const mark = response.correct === null ? "" : response.correct ? "✓ " : "✗ ";
  const outcome = response.correct === null ? "" : response.correct ? "right" : "wrong";
  const facts = [response.extracted === null ? "" : `answer ${response.extracted}`, `${response.tokens.length} tokens`,
    response.given ? "given" : "", response.truncated ? "cut off" : ""].filter(Boolean);
  return make("button", { role: "tab", type: "button", class: outcome, "aria-controls": "stage", onclick: chosen },
    make("b", { text: `${mark}Response ${index + 1}${outcome ? `, ${outcome}` : ""}` }),
    make("span", { text: facts.join(" · ") }));
}

function scaleSwitch(state, changed) {
  const choices = [["value", "value, each measure on its own scale", false], ["rank", "rank within the response, the same scale for all", true]];
  const labels = choices.map(([value, text, byRank]) => {
    const input = make("input", { type: "radio", name: "scale", value });
    input.checked = byRank === state.byRank;
    input.addEventListener("change", () => {
      state.byRank = byRank;
      changed();
    });
    return make("label", {}, input, make("span", { text }));
  });
  return make("fieldset", { class: "switch" }, make("legend", { text: "Colour tokens by" }), ...labels);
}

// ---- colours ----

/** Shades in [-1, 1] by token and the values at the ends of the scale, within which 97% of its values lie.
 *  Weights have their neutral value at 1, and a scale of its own on either side. */
function shadesOf(response, measure, byRank) {
  const values = response.values[measure.key];
  if (byRank) return { shades: ranksOf(values), ends: ["least", "most"], signed: false };
  const away = values.map((value) => value - measure.neutral);
  const below = away.filter((value) => value < 0);
  const sides = measure.neutral ? [below, away.filter((value) => value > 0)] : [away, away];
  const [low, high] = sides.map(reach);
  const signed = below.length > 0;
  const shades = values.map((value) => Math.max(-1, Math.min(1, (value - measure.neutral) / (value < measure.neutral ? low : high))));
  const ends = [measure.neutral - low, measure.neutral, measure.neutral + high].map((value) => number(Math.abs(value) < 1e-6 ? 0 : value));
  return { shades, ends: signed ? ends : ends.slice(1), signed };
}

function reach(values) {
  const sizes = values.map(Math.abs).sort((a, b) => a - b);
  return sizes[Math.floor(0.97 * (sizes.length - 1))] || sizes[sizes.length - 1] || 1;
}

/** 0 for the lowest value, 1 for the highest; equal values share their mean rank. */
function ranksOf(values) {
  const order = values.map((_, i) => i).sort((a, b) => values[a] - values[b]);
  const ranks = new Array(values.length).fill(0);
  for (let start = 0; start < order.length; ) {
    let end = start;
    while (end + 1 < order.length && values[order[end + 1]] === values[order[start]]) end += 1;
    for (let i = start; i <= end; i += 1) ranks[order[i]] = (start + end) / 2 / Math.max(1, order.length - 1);
    start = end + 1;
  }
  return ranks;
}

const tint = (shade) =>
  `color-mix(in oklab, var(${shade < 0 ? "--cool" : "--warm"}) ${(100 * Math.abs(shade)).toFixed(1)}%, var(--paper))`;

// ---- the overview ----

function overview(response, measures, shades) {
  const size = response.tokens.length;
  const rows = measures.flatMap((measure) => {
    const stops = shades.get(measure).shades.map((shade, i) =>
      `${tint(shade)} ${((100 * i) / size).toFixed(3)}% ${((100 * (i + 1)) / size).toFixed(3)}%`);
    const strip = make("div", { class: "strip" });
    strip.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
    return [labelOf(measure), strip];
  });
  const cursor = make("div", { class: "strip-cursor", hidden: "" });
  const grid = make("div", { class: "overview", "aria-hidden": "true" }, ...rows, cursor);
  grid.addEventListener("pointermove", (event) => {
    if (!event.target.matches(".strip")) return leave();
    const box = event.target.getBoundingClientRect();
    const index = Math.min(size - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * size)));
    const outer = grid.getBoundingClientRect();
    cursor.hidden = false;
    cursor.style.left = `${box.left - outer.left + ((index + 0.5) * box.width) / size}px`;
    pointOut(index);
    describeToken(response, index, measures, null, { x: event.clientX, y: outer.top, bottom: outer.bottom });
  });
  function leave() {
    cursor.hidden = true;
    pointOut(null);
    hideCard();
  }
  grid.addEventListener("pointerleave", leave);
  return grid;
}

const labelOf = (measure) =>
  make("span", { class: "measure-label" }, make("i", { text: measure.symbol }), ` ${measure.name}`);

// ---- a response by one measure ----

function measureCard(response, measure, { shades, ends, signed }, measures) {
  const label = `Response by ${measure.name}; move through its tokens with the arrow keys`;
  const list = make("div", { class: "tokens", role: "listbox", "aria-label": label, "aria-orientation": "horizontal" });
  list.append(...response.tokens.map((text, index) => creditToken(response, measure, text, index, shades[index])));
  if (list.firstChild) list.firstChild.tabIndex = 0;
  const show = (token) => {
    pointOut(token.index);
    describeToken(response, token.index, measures, measure, token.getClientRects()[0] || token.getBoundingClientRect());
  };
  const hide = () => {
    pointOut(null);
    hideCard();
  };
  list.addEventListener("pointerover", (event) => event.target.matches(".token") && show(event.target));
  list.addEventListener("pointerleave", hide);
  list.addEventListener("focusin", (event) => {
    for (const other of list.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    event.target.tabIndex = 0;
    show(event.target);
  });
  list.addEventListener("focusout", hide);
  list.addEventListener("keydown", (event) => {
    const at = document.activeElement.index;
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: list.children.length - 1 };
    if (event.key === "Escape") hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    const next = list.children[moves[event.key]];
    if (next) next.focus();
  });
  const ramp = make("div", { class: "scale" }, make("span", { class: signed ? "ramp signed" : "ramp", "aria-hidden": "true" }),
    make("span", { class: "ends" }, ...ends.map((text) => make("span", { text }))));
  const heading = make("h3", {}, labelOf(measure), ramp);
  return make("article", { class: "measure" }, heading, make("p", { class: "about", text: measure.about }), list);
}

function creditToken(response, measure, text, index, shade) {
  const kinds = ["token", text.includes("\n") ? "break" : "", shade < 0 ? "cool" : "",
    measure.key === "vppo" && response.kept[index] ? "kept" : ""];
  const value = number(response.values[measure.key][index]);
  const token = make("span", { class: kinds.filter(Boolean).join(" "), role: "option", tabindex: -1, "aria-selected": "false",
    "aria-label": `${text.trim() || "space"}, token ${index + 1} of ${response.tokens.length}, ${measure.name} ${value}`, text });
  token.style.setProperty("--strength", Math.abs(shade).toFixed(3));
  return Object.assign(token, { index });
}

let pointed = [];

/** Outline the same token in every text. */
function pointOut(index) {
  for (const token of pointed) token.classList.remove("same");
  pointed = index === null ? [] : [...document.querySelectorAll(".measure .tokens")].map((list) => list.children[index]).filter(Boolean);
  for (const token of pointed) token.classList.add("same");
}

function describeToken(response, index, measures, current, place) {
  const rows = measures.map((measure) =>
    [`${measure.symbol}  ${measure.name}`, number(response.values[measure.key][index]), measure === current ? "strong" : ""]);
  rows.push(["probability", number(Math.exp(response.logprobs[index]))]);
  const text = response.tokens[index].replaceAll("\n", "↵");
  const heading = make("p", { class: "where" }, make("code", { text }), ` ${index + 1} of ${response.tokens.length}`);
  showCard(place, heading, numbersTable(rows));
}

const [credit] = data("group-data") || [];
if (credit && credit.responses.length) setUpCredit(byId("credit-map"), credit);
