"use strict";

// The token utility map: a gallery of rollout groups, and the tokens of the selected one in colour.

const QUANTITIES = [
  { key: "utility", symbol: "U", name: "utility", about: "visual utility, Eq. 13" },
  { key: "support", symbol: "c", name: "support", about: "visual support, Eq. 10" },
  { key: "future", symbol: "F", name: "future", about: "future support, Eq. 11" },
  { key: "gate", symbol: "u", name: "gate", about: "entropy gate, Eq. 12" },
  { key: "advantage", symbol: "A", name: "advantage before", about: "group advantage, Eq. 2", scale: "advantages" },
  { key: "advantage_final", symbol: "A′", name: "advantage after", about: "after Eq. 14–15 and the format reward", scale: "advantages" },
];
const ORDERS = [
  { name: "largest spread of U", rank: (group) => [group.mixed ? 1 : 0, group.spread] },
  { name: "largest V", needs: (group) => group.dependency >= 0, rank: (group) => [group.dependency, group.spread] },
  { name: "newest step", rank: (group) => [group.step, group.spread] },
  { name: "oldest step", rank: (group) => [-group.step, group.spread] },
];

const byRank = (order) => (a, b) => {
  const [left, right] = [order.rank(a), order.rank(b)];
  return right[0] - left[0] || right[1] - left[1];
};

/** The numbers that colour the tokens of a response; the group advantage is the same for all of them. */
function tokenValues(response, key) {
  if (key !== "advantage") return response[key] || null;
  return response.advantage === undefined ? null : response.tokens.map(() => response.advantage);
}

function setUpTokenMap(root, groups) {
  const available = QUANTITIES.filter((q) => groups.some((g) => g.responses.some((r) => tokenValues(r, q.key))));
  const state = { order: ORDERS[0], group: groups[0], quantity: available[0] };
  const gallery = make("div", { class: "gallery", role: "tablist", "aria-label": "Rollout groups" });
  const stage = make("div", { id: "stage", role: "tabpanel", "aria-live": "off" });
  const legend = make("div", { class: "legend" });

  function choose(group, focus) {
    state.group = group;
    for (const tab of gallery.children) {
      const chosen = tab.group === group;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      if (chosen && focus) tab.focus();
      if (chosen) gallery.scrollLeft = tab.offsetLeft - gallery.offsetLeft - 40;
    }
    stage.replaceChildren(aboutPanel(group), responsePanel(group, state));
    stage.setAttribute("aria-label", `Group ${group.id}, step ${group.step}`);
    colour();
  }

  function colour() {
    if (!state.quantity) return;
    const scale = scaleOf(state.group, state.quantity);
    showLegend(legend, state.quantity, scale);
    for (const token of stage.querySelectorAll(".token")) colourToken(token, state.quantity, scale);
  }

  function fillGallery() {
    const sorted = [...groups].sort(byRank(state.order));
    gallery.replaceChildren(...sorted.map((group) => galleryTab(group, choose)));
    choose(sorted[0]);
  }

  gallery.addEventListener("keydown", (event) => {
    const tabs = [...gallery.children];
    const at = tabs.indexOf(document.activeElement);
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(tabs[Math.min(Math.max(0, moves[event.key]), tabs.length - 1)].group, true);
  });
  const controls = make("div", { class: "controls" }, quantitySwitch(available, state, colour), legend);
  root.append(orderChooser(groups, state, fillGallery), gallery, controls, stage);
  fillGallery();
}

function orderChooser(groups, state, changed) {
  const offered = ORDERS.filter((order) => !order.needs || groups.some(order.needs));
  const options = offered.map((order) => make("option", { value: ORDERS.indexOf(order), text: order.name }));
  const select = make("select", { id: "order" }, ...options);
  select.addEventListener("change", () => {
    state.order = ORDERS[select.value];
    changed();
  });
  return make("p", { class: "order" }, make("label", { for: "order", text: "Sorted by " }), select);
}

function galleryTab(group, choose) {
  const picture = group.images.length ? make("img", { src: group.images[0], alt: "" }) : make("span", { class: "no-image", text: "No image" });
  const score = make("span", { class: "score", text: `${group.numCorrect}/${group.numResponses} correct` });
  const facts = [`spread ${number(group.spread, 2)}`];
  if (group.dependency >= 0) facts.push(`V ${number(group.dependency, 2)}`);
  const tab = make("button", { role: "tab", type: "button", "aria-controls": "stage", onclick: () => choose(group) },
    picture, make("span", { class: "name", text: group.id }),
    make("span", { class: "facts" }, score, make("span", { text: `step ${group.step}` }), make("span", { text: facts.join(" · ") })));
  tab.group = group;
  return tab;
}

function quantitySwitch(available, state, changed) {
  const choices = available.map((quantity) => {
    const input = make("input", { type: "radio", name: "quantity", value: quantity.key });
    input.checked = quantity === state.quantity;
    input.addEventListener("change", () => {
      state.quantity = quantity;
      changed();
    });
    return make("label", { title: quantity.about }, input,
      make("span", {}, make("i", { text: quantity.symbol }), ` ${quantity.name}`));
  });
  return make("fieldset", { class: "switch" }, make("legend", { text: "Colour tokens by" }), ...choices);
}

// ---- colours ----

/** Symmetric around 0 and clipped at the 97% quantile, so that one outlier does not fade all others. */
function scaleOf(group, quantity) {
  const keys = QUANTITIES.filter((q) => q === quantity || (q.scale && q.scale === quantity.scale)).map((q) => q.key);
  const values = group.responses.flatMap((r) => keys.flatMap((key) => tokenValues(r, key) || []));
  const sizes = values.map(Math.abs).sort((a, b) => a - b);
  const limit = sizes[Math.floor(0.97 * (sizes.length - 1))] || sizes[sizes.length - 1] || 1;
  return { limit, signed: values.some((value) => value < 0) };
}

function colourToken(token, quantity, scale) {
  const values = tokenValues(token.response, quantity.key);
  token.classList.toggle("unknown", !values);
  const value = values ? values[token.index] : 0;
  token.classList.toggle("cool", value < 0);
  token.style.setProperty("--strength", Math.min(1, Math.abs(value) / scale.limit).toFixed(3));
  const valueText = values ? `, ${quantity.name} ${number(value)}` : "";
  token.setAttribute("aria-label", `${token.text.trim() || "space"}, token ${token.index + 1} of ${token.response.tokens.length}${valueText}`);
}

function showLegend(legend, quantity, scale) {
  const ends = scale.signed ? [number(-scale.limit), "0", number(scale.limit)] : ["0", number(scale.limit)];
  legend.replaceChildren(
    make("span", { class: "about", text: `${quantity.symbol}: ${quantity.about}` }),
    make("span", { class: scale.signed ? "ramp signed" : "ramp", "aria-hidden": "true" }),
    make("span", { class: "ends" }, ...ends.map((text) => make("span", { text }))));
}

// ---- one group ----

function aboutPanel(group) {
  const pictures = group.images.flatMap((image, i) => [
    picture(image, "Image", `Image ${i + 1} of the question`),
    group.corrupted[i] ? picture(group.corrupted[i], "Corrupted image", `Image ${i + 1}, corrupted`) : null,
  ]);
  const facts = [["Answer", group.answer], ["Step", group.step], ["Task", group.task], ["Prompt", group.id], ["Source", group.replayed ? "replayed" : "fresh"]];
  const list = make("dl", {}, ...facts.filter(([, value]) => value !== "").flatMap(([term, value]) =>
    [make("dt", { text: term }), make("dd", { text: value })]));
  return make("div", { class: "about-group" }, make("div", { class: "pictures" }, ...pictures),
    make("p", { class: "question", text: group.question }), list, group.anchor ? anchorPanel(group.anchor) : null);
}

const picture = (source, caption, alt) =>
  make("figure", { class: "picture" }, make("img", { src: source, alt }), make("figcaption", { text: caption }));

function anchorPanel(anchor) {
  const numbers = Object.entries(anchor).filter(([key]) => key !== "text").map(([key, value]) => [key.replaceAll("_", " "), number(value)]);
  return make("details", { class: "anchor" }, make("summary", { text: "Anchor of this prompt" }),
    make("p", { class: "text", text: anchor.text }), numbersTable(numbers));
}

function responsePanel(group, state) {
  const side = (correct) => {
    const shown = group.responses.filter((response) => response.correct === correct);
    const all = correct ? group.numCorrect : group.numResponses - group.numCorrect;
    const title = correct ? "Correct" : "Wrong";
    const count = shown.length < all ? ` (${shown.length} of ${all})` : "";
    const body = shown.length ? shown.map((response) => responseCard(response, state)) : [make("p", { class: "none", text: "None in this group" })];
    return make("section", { class: correct ? "side correct" : "side wrong" }, make("h3", { text: `${correct ? "✓" : "✗"} ${title}${count}` }), ...body);
  };
  return make("div", { class: "sides" }, side(true), side(false));
}

function responseCard(response, state) {
  const facts = [`answer ${response.extracted === null ? "–" : response.extracted}`, `A ${number(response.advantage)}`];
  if (response.dependency !== undefined) facts.push(`V ${number(response.dependency)}`);
  facts.push(`${response.tokens.length} tokens`);
  if (response.truncated) facts.push("truncated");
  if (response.experience) facts.push("from the buffer");
  if (!response.correct && response.reason) facts.push(response.reason);
  const label = `${response.correct ? "Correct" : "Wrong"} response; move through its tokens with the arrow keys`;
  const list = make("div", { class: "tokens", role: "listbox", "aria-label": label, "aria-orientation": "horizontal" });
  list.append(...response.tokens.map((text, index) => tokenSpan(response, text, index)));
  list.firstChild.tabIndex = 0;
  list.addEventListener("keydown", (event) => walk(event, list));
  list.addEventListener("pointerover", (event) => event.target.matches(".token") && describe(event.target, state));
  list.addEventListener("pointerleave", hideCard);
  list.addEventListener("focusin", (event) => moveTo(list, event.target, state));
  list.addEventListener("focusout", hideCard);
  return make("article", { class: "response" }, make("p", { class: "facts" }, ...facts.map((text) => make("span", { text }))), list);
}

function tokenSpan(response, text, index) {
  const token = make("span", { class: text.includes("\n") ? "token break" : "token", role: "option", tabindex: -1, "aria-selected": "false", text });
  return Object.assign(token, { response, text, index });
}

function walk(event, list) {
  const tokens = list.children;
  const at = document.activeElement.index;
  const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tokens.length - 1,
    ArrowUp: () => lineAway(list, at, -1), ArrowDown: () => lineAway(list, at, 1) };
  if (event.key === "Escape") hideCard();
  if (!(event.key in moves)) return;
  event.preventDefault();
  const move = moves[event.key];
  const next = tokens[typeof move === "function" ? move() : move];
  if (next) next.focus();
}

/** The nearest token on the next line up or down. */
function lineAway(list, at, direction) {
  const from = list.children[at].getBoundingClientRect();
  let best = at;
  let bestDistance = Infinity;
  let line = null;
  for (let i = at + direction; i >= 0 && i < list.children.length; i += direction) {
    const box = list.children[i].getClientRects()[0];
    if (!box || Math.abs(box.top - from.top) < 4) continue;
    if (line === null) line = box.top;
    if (Math.abs(box.top - line) >= 4) break;
    const distance = Math.abs(box.left - from.left);
    if (distance < bestDistance) [best, bestDistance] = [i, distance];
  }
  return best;
}

function moveTo(list, token, state) {
  for (const other of list.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
  for (const other of list.querySelectorAll('[aria-selected="true"]')) other.setAttribute("aria-selected", "false");
  token.tabIndex = 0;
  token.setAttribute("aria-selected", "true");
  describe(token, state);
}

function describe(token, state) {
  const { response, index } = token;
  const rows = QUANTITIES.map((quantity) => {
    const values = tokenValues(response, quantity.key);
    return values ? [`${quantity.symbol}  ${quantity.name}`, number(values[index]), quantity === state.quantity ? "strong" : ""] : null;
  });
  if (response.logprobs) rows.push(["probability", number(Math.exp(response.logprobs[index]))]);
  if (response.entropy) rows.push(["entropy", number(response.entropy[index])]);
  const heading = make("p", { class: "where" }, make("code", { text: token.text.replaceAll("\n", "↵") }), ` ${index + 1} of ${response.tokens.length}`);
  showCard(token.getClientRects()[0] || token.getBoundingClientRect(), heading, numbersTable(rows.filter(Boolean)));
}

const rolloutGroups = data("group-data") || [];
if (rolloutGroups.length) setUpTokenMap(byId("token-map"), rolloutGroups);
