/** The list of runs. */

import { byId, element, fill, setText } from "./elements.js";
import { AnswerError, fetchJson, root } from "./fetching.js";
import { clock, count, duration, percent, power } from "./format.js";
import { watchLive } from "./live.js";
import { liveness } from "./liveness.js";
import { Refetch } from "./refetch.js";
import { filtered, readFilter, severityOf, writeFilter } from "./runlist.js";
import { sparkline } from "./sparkline.js";
import { startTheme } from "./theme.js";

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
  runs = answer.items;
  more = answer.next !== null;
  problem = "";
  showProjects([...new Set(runs.map((run) => run.project))]);
  showRuns();
  showLive();
}

function changed() {
  const query = writeFilter({ text: text.value, state: state.value, project: project.value });
  history.replaceState(null, "", location.pathname + query);
  showRuns();
}

function showRuns() {
  const shown = filtered(runs, { text: text.value, state: state.value, project: project.value });
  byId("filter").hidden = runs.length === 0;
  if (runs.length === 0) fill(byId("runs"), firstSteps());
  else if (shown.length === 0) fill(byId("runs"), element("p", { class: "card" }, "No run matches this filter."));
  else fill(byId("runs"), table(shown), more && element("p", { class: "note" }, "The newest 200 runs."));
}

/** @param {RunLine[]} shown */
function table(shown) {
  const focused = document.activeElement instanceof HTMLAnchorElement ? document.activeElement.dataset.run : undefined;
  const names = ["run", "state", "loss scale", "applied / attempted", "skipped", "worst finding"];
  const made = element(
    "table",
    { class: "runs" },
    element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...shown.map(row)),
  );
  if (focused !== undefined) {
    // The rows are made anew: give the keyboard back its place.
    requestAnimationFrame(() =>
      links()
        .find((link) => link.dataset.run === focused)
        ?.focus({ preventScroll: true }),
    );
  }
  return made;
}

/** @param {RunLine} run */
function row(run) {
  const ago = duration(Math.max(serverNow() - run.started_at, 0));
  const link = element("a", { href: `${root}/runs/${encodeURIComponent(run.id)}`, "data-run": run.id }, run.name);
  const worst = run.worst ? `${severityOf(run) ?? ""}: ${run.worst}` : "nothing found";
  return element(
    "tr",
    {},
    element(
      "td",
      { class: "name full" },
      link,
      element("small", {}, [run.project, ...run.tags, `started ${ago} ago`].join(" · ")),
    ),
    element(
      "td",
      {},
      element("span", { class: "state", "data-state": run.state }, element("i", { "aria-hidden": "true" }), run.state),
    ),
    element("td", {}, sparkline(run.sparkline), element("small", { class: "mono" }, power(run.scale))),
    element("td", { class: "mono" }, `${count(run.applied)} / ${count(run.attempted)}`),
    element("td", { class: "mono" }, run.attempted ? percent(run.skipped / run.attempted) : "–"),
    element("td", { class: "worst full", "data-severity": severityOf(run) }, worst),
  );
}

function firstSteps() {
  const step = (/** @type {string} */ words, /** @type {string} */ code) =>
    element("li", {}, words, element("pre", { tabindex: 0 }, code));
  return element(
    "section",
    { class: "card first-steps" },
    element("h2", {}, "No run yet. Three steps to the first chart:"),
    element(
      "ol",
      {},
      step("Install the hook where you train.", "pip install scalescope"),
      step(
        "Add one line before the loop; it works without a scaler too.",
        "import scalescope\nscalescope.watch(model, optimizer, scaler)",
      ),
      step(
        "Train. This server takes the data; on another machine, tell it the address.",
        `SCALESCOPE_URL=${location.origin}${root} python train.py`,
      ),
    ),
    element(
      "p",
      { class: "note" },
      "Only looking? ",
      element("code", {}, `scalescope demo --url ${location.origin}${root}`),
      " trains a small model in fp16. This page fills by itself.",
    ),
  );
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
