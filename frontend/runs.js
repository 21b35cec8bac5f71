/** The list of runs. */

import { AllRunsPage } from "./allruns.js";
import { byId, element, fill } from "./elements.js";
import { fetchJson, root } from "./fetching.js";
import { filtered, readFilter, writeFilter } from "./runlist.js";
import { firstSteps, runTable } from "./runtable.js";
import { WorstFindings } from "./worst.js";

/** @typedef {import("./runlist.js").RunLine} RunLine */

const text = /** @type {HTMLInputElement} */ (byId("text"));
const state = /** @type {HTMLSelectElement} */ (byId("state"));
const project = /** @type {HTMLSelectElement} */ (byId("project"));
/** @type {RunLine[]} */
let runs = [];
let more = false;
const page = new AllRunsPage({ load });
const worst = new WorstFindings(() => (page.held ? page.ask() : showRuns()));

const filter = readFilter(location.search);
text.value = filter.text;
state.value = filter.state;
showProjects(filter.project ? [filter.project] : []);
project.value = filter.project;

for (const input of [text, state, project]) input.addEventListener("input", changed);
byId("filter").addEventListener("submit", (event) => event.preventDefault());
addEventListener("keydown", key);
page.start();

async function load() {
  const answer = await fetchJson("/api/runs?limit=200");
  return () => {
    runs = answer.items;
    more = answer.next !== null;
    showProjects([...new Set(runs.map((run) => run.project))]);
    showRuns();
  };
}

function changed() {
  const query = writeFilter({ text: text.value, state: state.value, project: project.value });
  history.replaceState(null, "", location.pathname + query);
  showRuns();
}

function showRuns() {
  const shown = filtered(runs, { text: text.value, state: state.value, project: project.value });
  byId("filter").hidden = runs.length === 0;
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.run : undefined;
  if (runs.length === 0) fill(byId("runs"), firstSteps(location.origin + root));
  else if (shown.length === 0) fill(byId("runs"), nothingMatches());
  else
    fill(
      byId("runs"),
      runTable(shown, (run) => worst.sentence(run), page.now),
      more && newestOnly(),
    );
  // The rows are made anew: give the keyboard back its place.
  if (focused !== undefined)
    links()
      .find((link) => link.dataset.run === focused)
      ?.focus({ preventScroll: true });
  void worst.learn(shown);
}

function nothingMatches() {
  const clear = element("button", { type: "button", class: "link", onclick: clearFilter }, "Clear the filter");
  return element("p", { class: "card" }, "No run matches this filter. ", clear);
}

function clearFilter() {
  for (const input of [text, state, project]) input.value = "";
  changed();
  text.focus();
}

function newestOnly() {
  return element("p", { class: "note" }, "The newest 200 runs.");
}

/** @param {string[]} names */
function showProjects(names) {
  const chosen = project.value;
  const known = new Set([...names, ...(chosen ? [chosen] : [])]);
  if (project.dataset.names === JSON.stringify([...known])) return;
  project.dataset.names = JSON.stringify([...known]);
  fill(
    project,
    element("option", { value: "" }, "any project"),
    ...[...known].map((name) => element("option", { value: name }, name)),
  );
  project.value = chosen;
}

function links() {
  return /** @type {HTMLAnchorElement[]} */ ([...document.querySelectorAll("a[data-run]")]);
}

/** @param {KeyboardEvent} event */
function key(event) {
  if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const all = links();
  const at = all.indexOf(/** @type {HTMLAnchorElement} */ (document.activeElement));
  if (event.key === "j") all[Math.min(at + 1, all.length - 1)]?.focus();
  else if (event.key === "k") all[Math.max(at - 1, 0)]?.focus();
  else if (event.key === "/") {
    event.preventDefault();
    text.focus();
  }
}
