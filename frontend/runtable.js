/** The rows of the list of runs, and what stands there before the first run. */

import { element, raisedText } from "./elements.js";
import { root } from "./fetching.js";
import { count, duration, noUpdate, percent, power } from "./format.js";
import { severityOf } from "./runlist.js";
import { sparkline } from "./sparkline.js";

/** @typedef {import("./runlist.js").RunLine} RunLine */

const COLUMNS = ["run", "state", "loss scale", "applied / attempted", "skipped", "worst finding"];

/**
 * @param {RunLine[]} runs
 * @param {(run: RunLine) => string | null} worst the sentence of its worst finding, once known
 * @param {number} now by the server's clock
 * @returns {HTMLTableElement}
 */
export function runTable(runs, worst, now) {
  const head = COLUMNS.map((name) => element("th", { scope: "col" }, name));
  return element(
    "table",
    { class: "runs" },
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...runs.map((run) => row(run, worst(run), now))),
  );
}

/**
 * @param {string} address of this server
 * @returns {HTMLElement}
 */
export function firstSteps(address) {
  const step = (/** @type {string} */ words, /** @type {string} */ code) =>
    element("li", {}, words, element("pre", { tabindex: 0 }, code));
  const watch = "import scalescope\nscalescope.watch(model, optimizer, scaler)";
  return element(
    "section",
    { class: "card first-steps" },
    element("h2", {}, "No run yet. Three steps to the first chart:"),
    element(
      "ol",
      {},
      step("Install the hook where you train.", "pip install scalescope"),
      step("Add one line before the loop. It works without a scaler too: leave it out.", watch),
      step("Keep this server up, and train.", `SCALESCOPE_URL=${address} python train.py`),
    ),
    element(
      "p",
      { class: "note" },
      "Only looking? ",
      element("code", {}, `scalescope demo --url ${address}`),
      " trains a small model in fp16. This page fills by itself.",
    ),
  );
}

/**
 * @param {RunLine} run
 * @param {string | null} worst
 * @param {number} now
 */
function row(run, worst, now) {
  const severity = severityOf(run);
  const link = element("a", { href: `${root}/runs/${encodeURIComponent(run.id)}`, "data-run": run.id }, run.name);
  const about = [run.project, ...run.tags, `started ${duration(Math.max(now - run.started_at, 0))} ago`].join(" · ");
  const state = element("span", { class: "state", "data-state": run.state }, dot(), run.state);
  const nothing = run.attempted ? "no finding" : noUpdate(run.state);
  const found = severity ? [element("b", {}, `${severity}: `), ...raisedText(worst ?? "…")] : [nothing];
  const scale = run.attempted ? power(run.scale) : "–";
  const spark = run.sparkline.some((value) => value !== null) && sparkline(run.sparkline);
  return element(
    "tr",
    {},
    element("td", { class: "name" }, link, element("small", {}, about)),
    element("td", {}, state),
    element("td", { class: "scale" }, spark, element("span", {}, ...raisedText(scale))),
    element("td", { class: "count", "data-label": "applied" }, `${count(run.applied)} / ${count(run.attempted)}`),
    element(
      "td",
      { class: "count", "data-label": "skipped" },
      run.attempted ? percent(run.skipped / run.attempted) : "–",
    ),
    element("td", { class: "worst", "data-severity": severity }, firing(run), ...found),
  );
}

/** @param {RunLine} run */
function firing({ id, firing }) {
  if (!firing) return null;
  const words = firing === 1 ? "1 alert fires" : `${firing} alerts fire`;
  return element("a", { class: "fires", href: `${root}/alerts?run=${encodeURIComponent(id)}` }, words);
}

function dot() {
  return element("i", { "aria-hidden": "true" });
}
