/** The list of runs. */

import { byId, element, fill, setText } from "./elements.js";
import { AnswerError, fetchJson, root } from "./fetching.js";
import { clock } from "./format.js";
import { watchLive } from "./live.js";
import { liveness } from "./liveness.js";
import { watchPointer } from "./pressed.js";
import { Refetch } from "./refetch.js";
import { filtered, readFilter, writeFilter } from "./runlist.js";
import { firstSteps, runTable } from "./runtable.js";
import { startTheme } from "./theme.js";
import { WorstFindings } from "./worst.js";

/** @typedef {import("./runlist.js").RunLine} RunLine */

const text = /** @type {HTMLInputElement} */ (byId("text"));
const state = /** @type {HTMLSelectElement} */ (byId("state"));
const project = /** @type {HTMLSelectElement} */ (byId("project"));
/** @type {RunLine[]} */
let runs = [];
let more = false;
/** @type {import("./liveness.js").Connection} */
let connection = "connecting";
/** @type {number | null} */
let lostAt = null;
let clockAhead = 0;
let problem = "";
const worst = new WorstFindings(() => (refetch.held ? refetch.ask() : showRuns()));

const filter = readFilter(location.search);
text.value = filter.text;
state.value = filter.state;
showProjects(filter.project ? [filter.project] : []);
project.value = filter.project;

const refetch = new Refetch(load, (error) => {
  if (!(error instanceof AnswerError)) throw error;
  problem = error.status === 0 ? "" : `The server could not answer: ${error.message}.`;
  showLive();
});

for (const input of [text, state, project]) input.addEventListener("input", changed);
byId("filter").addEventListener("submit", (event) => event.preventDefault());
addEventListener("keydown", key);
startTheme(byId("theme"), () => undefined);
watchPointer(
  () => refetch.hold(),
  () => refetch.release(),
);
refetch.ask();
setInterval(showLive, 1000);
watchLive(root, null, {
  onNews: () => refetch.ask(),
  onAnew: () => refetch.ask(),
  onBeat: () => undefined,
  onConnection: (now) => {
    if (now === "lost" && connection !== "lost") lostAt = serverNow();
    connection = now;
    showLive();
  },
  onClock: (now) => {
    clockAhead = now - Date.now() / 1000;
  },
});

async function load() {
  const answer = await fetchJson("/api/runs?limit=200");
  return async () => {
    if (refetch.held) {
      refetch.ask();
      return;
    }
    runs = answer.items;
    more = answer.next !== null;
    problem = "";
    showProjects([...new Set(runs.map((run) => run.project))]);
    showRuns();
    showLive();
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
      runTable(shown, (run) => worst.sentence(run), serverNow()),
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

function serverNow() {
  return Date.now() / 1000 + clockAhead;
}

function showLive() {
  const { kind, text: words } = liveness({ connection, state: null, lastSeenAt: null, now: serverNow(), lostAt });
  document.documentElement.dataset.live = kind;
  setText(/** @type {Element} */ (byId("live").lastElementChild), words);
  const lost = `The server does not answer since ${clock(lostAt ?? serverNow())}. What you see is from then; this page reconnects by itself.`;
  const notice = kind === "lost" ? lost : problem;
  byId("lost").hidden = notice === "";
  setText(byId("lost"), notice);
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
