/** All layers of a run: a heat map of one measure, in forward order. */

import { ChartCard } from "./cards.js";
import { byId, element, setText } from "./elements.js";
import { aboutText } from "./facts.js";
import { fetchJson, root, runPath } from "./fetching.js";
import { count } from "./format.js";
import { RunPage } from "./runpage.js";

// A row must stay legible with few layers and the page finite with many.
const ROW_PX = 15;
const SMALL_ROW_PX = 3;
const MANY_ROWS = 80;

const measure = /** @type {HTMLSelectElement} */ (byId("measure"));
const match = /** @type {HTMLInputElement} */ (byId("match"));
/** @type {string[]} */
let names = [];

const page = new RunPage({ load, onRange: (range) => card.show([range[0] - 0.5, range[1] - 0.5]) });
const card = new ChartCard("layers", "Layers", true, { ...page.reader, onPick: (row) => open(names[row]) });
const links = element("ul", { class: "names" });
const byName = element("details", { class: "card wide" }, element("summary", {}, "Layers by name"), links);
byId("charts").append(card.root, byName);

match.value = page.view.match;
match.addEventListener("input", () => page.change({ match: match.value }));
measure.addEventListener("change", () => page.change({ measure: measure.value }));
byId("filter").addEventListener("submit", (event) => event.preventDefault());
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target === match) return;
  event.preventDefault();
  match.focus();
});
page.start();
void loadRun();

async function load() {
  const query = page.query(Math.max(card.width, 200));
  query.set("measure", page.view.measure);
  if (page.view.match) query.set("match", page.view.match);
  const range = page.axis;
  const answer = await fetchJson(`${runPath(page.run, "/figures/layers")}?${query}`);
  return {
    step: answer.step,
    draw: async () => {
      showMeasures(answer.measures);
      names = answer.chart.figure.layout.meta?.names ?? [];
      card.height = heightOf(names.length);
      await card.draw(answer.chart, range, page.now);
      const cut = answer.rows.length < answer.total ? `, the first ${count(answer.rows.length)} shown` : "";
      setText(byId("matches"), `${count(answer.total)} layer${answer.total === 1 ? "" : "s"}${cut}`);
      showLinks(answer.rows);
    },
  };
}

/** @param {{name: string, title: string}[]} measures */
function showMeasures(measures) {
  if (measure.options.length === 0) {
    measure.append(...measures.map(({ name, title }) => element("option", { value: name }, `${title} (${name})`)));
  }
  measure.value = page.view.measure;
}

/** @param {{name: string}[]} rows */
function showLinks(rows) {
  const text = JSON.stringify(rows.map(({ name }) => name));
  if (links.dataset.names === text) return;
  links.dataset.names = text;
  byName.hidden = rows.length === 0;
  links.replaceChildren(...rows.map(({ name }) => element("li", {}, element("a", { href: addressOf(name) }, name))));
}

/** @param {number} rows */
function heightOf(rows) {
  return Math.max(160, 40 + rows * (rows > MANY_ROWS ? SMALL_ROW_PX : ROW_PX));
}

/** @param {string} name */
function addressOf(name) {
  return `${root}/runs/${encodeURIComponent(page.run)}/layers/${encodeURIComponent(name)}`;
}

/** @param {string | undefined} name */
function open(name) {
  if (name !== undefined) location.assign(addressOf(name));
}

async function loadRun() {
  const run = await fetchJson(runPath(page.run)).catch(() => null);
  if (!run) return;
  page.learn(run);
  setText(byId("name"), run.name);
  setText(byId("about"), aboutText(run, page.now));
}
