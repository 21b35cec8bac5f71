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
/**
 * A row of the heat map. `opens`: the parameter whose page it opens.
 * @typedef {{name: string, latest: number | null, worst: number | null, opens: string | null}} Row
 *
 * @type {Row[]}
 */
let rows = [];

const page = new RunPage({ load, onRange: (range) => card.show([range[0] - 0.5, range[1] - 0.5]) });
const card = new ChartCard("layers", "Layers", true, { ...page.reader, onPick: (row) => open(rows[row]?.opens) });
const links = element("ul", { class: "names" });
const byName = element("details", { class: "card wide" }, element("summary", {}, "Layers by name"), links);
byId("charts").append(card.root, byName);

const hints = {
  layer:
    "Rows are layers in forward order, columns are updates. A click on a row opens the layer; the list below has links.",
  module:
    "Rows are modules in forward order, columns are updates. A click on a row opens the first layer in the module; the list below has links.",
};

match.value = page.view.match;
match.addEventListener("input", () => page.change({ match: match.value }));
byId("clear").addEventListener("click", () => {
  match.value = "";
  page.change({ match: "" });
});
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
  const answer = await fetchJson(`${runPath(page.run, "/figures/layers")}?${query}`);
  return {
    step: answer.step,
    draw: async () => {
      showMeasures(answer.measures);
      rows = answer.rows;
      card.height = heightOf(rows.length);
      await card.draw(answer.chart, page.axis, page.now);
      const cut = rows.length < answer.total ? `, the first ${count(rows.length)} shown` : "";
      setText(byId("matches"), `${count(answer.total)} ${answer.called}${answer.total === 1 ? "" : "s"}${cut}`);
      setText(byId("hint"), hints[answer.called === "module" ? "module" : "layer"]);
      byId("clear").hidden = answer.total > 0 || page.view.match === "";
      showLinks();
    },
  };
}

/** @param {{name: string, title: string, group: string}[]} measures */
function showMeasures(measures) {
  if (measure.options.length === 0) {
    const groups = [...new Set(measures.map(({ group }) => group))];
    measure.append(
      ...groups.map((label) =>
        element(
          "optgroup",
          { label },
          ...measures
            .filter(({ group }) => group === label)
            .map(({ name, title }) => element("option", { value: name }, title)),
        ),
      ),
    );
  }
  measure.value = page.view.measure;
}

function showLinks() {
  const text = JSON.stringify(rows.map(({ name, opens }) => [name, opens]));
  if (links.dataset.names === text) return;
  links.dataset.names = text;
  byName.hidden = rows.length === 0;
  links.replaceChildren(...rows.map(({ name, opens }) => element("li", {}, linkTo(name || "(the model)", opens))));
}

/**
 * @param {string} name
 * @param {string | null} opens
 */
function linkTo(name, opens) {
  return opens === null ? name : element("a", { href: addressOf(opens) }, name);
}

/** @param {number} rows */
function heightOf(rows) {
  return Math.max(160, 40 + rows * (rows > MANY_ROWS ? SMALL_ROW_PX : ROW_PX));
}

/** @param {string} name */
function addressOf(name) {
  return `${root}/runs/${encodeURIComponent(page.run)}/layers/${encodeURIComponent(name)}`;
}

/** @param {string | null | undefined} name */
function open(name) {
  if (name !== null && name !== undefined) location.assign(addressOf(name));
}

async function loadRun() {
  const run = await fetchJson(runPath(page.run)).catch(() => null);
  if (!run) return;
  page.learn(run);
  setText(byId("name"), run.name);
  setText(byId("about"), aboutText(run, page.now));
}
