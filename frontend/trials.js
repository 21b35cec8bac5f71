/** A rule tried on stored runs while it is typed. */

import { element, fill, setText, svg } from "./elements.js";
import { AnswerError, fetchJson, root, sendJson } from "./fetching.js";
import { count } from "./format.js";
import { healthyText, places, trialText } from "./trial.js";

/** @typedef {import("./trial.js").Backtest} Backtest */
/** @typedef {import("./trial.js").Trial} Trial */
/** @typedef {import("./rule.js").RuleGiven} RuleGiven */
/** @typedef {import("./sentencebox.js").Fault} Fault */

// Somebody who types pauses so long between words.
const PAUSE_MS = 300;
// More would be waited for.
const LAST_UPDATES = 50_000;
const MOST_LINKS = 6;
const AROUND = 200;
const WIDTH = 1000;

export class Trials {
  #run = element("select", { id: "tried-on" }, element("option", { value: "" }, "the newest runs that it applies to"));
  #told = element("div", { class: "trials", role: "status" });
  #onFaults;
  /** @type {RuleGiven | null} */ #rule = null;
  /** @type {string[]} */ #healthy = [];
  #timer = 0;
  #asking = new AbortController();

  /** @param {(faults: Fault[]) => void} onFaults what is wrong with the rule, nothing where it can be used */
  constructor(onFaults) {
    this.#onFaults = onFaults;
    const label = element("label", { for: "tried-on" }, "Tried on");
    this.root = element("div", {}, element("p", { class: "tried-on" }, label, this.#run), this.#told);
    this.#run.addEventListener("change", () => this.#rule && this.ask(this.#rule));
    void this.#offerRuns();
  }

  /**
   * Try it on this run first of all.
   * @param {string} run
   */
  choose(run) {
    this.#run.append(element("option", { value: run }, run));
    this.#run.value = run;
  }

  /**
   * Try it, once the reader pauses.
   * @param {RuleGiven} rule
   */
  ask(rule) {
    this.#rule = rule;
    this.#asking.abort();
    clearTimeout(this.#timer);
    this.root.toggleAttribute("data-old", true);
    this.#timer = setTimeout(() => void this.#try(rule), PAUSE_MS);
  }

  async #offerRuns() {
    const answer = await fetchJson("/api/runs?limit=50").catch(() => null);
    for (const { id, name } of answer?.items ?? []) {
      const known = [...this.#run.options].find(({ value }) => value === id);
      if (known) setText(known, name || id);
      else this.#run.append(element("option", { value: id }, name || id));
    }
  }

  /** @param {RuleGiven} rule */
  async #try(rule) {
    this.#asking = new AbortController();
    const { signal } = this.#asking;
    try {
      const { faults } = await sendJson("POST", "/api/rules/check", rule, signal);
      if (signal.aborted) return;
      this.#onFaults(faults);
      const wrong = faults.some((/** @type {Fault} */ { field }) => field !== "name");
      if (rule.when.trim() === "" || wrong) this.#say("It is tried on stored runs as soon as it can be read.");
      else await this.#backtest(rule, signal);
    } catch (error) {
      if (!(error instanceof AnswerError)) throw error;
      if (!signal.aborted) this.#say(`It could not be tried: ${error.message}.`);
    }
  }

  /**
   * @param {RuleGiven} rule
   * @param {AbortSignal} signal
   */
  async #backtest(rule, signal) {
    // It need not have its name to be tried.
    const { when, keep_firing, project, run, tag } = rule;
    const chosen = this.#run.value;
    const runs = chosen ? [...new Set([chosen, ...this.#healthy])] : null;
    const asked = { rule: { name: "tried", when, keep_firing, project, run, tag }, runs, last: LAST_UPDATES };
    /** @type {Backtest} */
    const found = await sendJson("POST", "/api/rules/backtest", asked, signal);
    if (signal.aborted) return;
    if (!chosen) this.#healthy = found.runs.filter(({ healthy }) => healthy).map((trial) => trial.run);
    this.root.removeAttribute("data-old");
    if (!found.runs.length) this.#say("No stored run is in its scope.");
    else fill(this.#told, ...found.runs.map(trialRow), element("p", { class: "healthy" }, healthyText(found)));
  }

  /** @param {string} words */
  #say(words) {
    this.root.removeAttribute("data-old");
    fill(this.#told, element("p", { class: "note" }, words));
  }
}

/** @param {Trial} trial */
function trialRow(trial) {
  const link = element("a", { href: `${root}/runs/${encodeURIComponent(trial.run)}` }, trial.name || trial.run);
  const healthy = trial.healthy && element("span", { class: "note" }, "marked healthy");
  return element(
    "div",
    { class: "trial", "data-run": trial.run, "data-count": trial.count },
    element("p", {}, link, healthy),
    element("p", {}, trialText(trial), ...links(trial)),
    trial.updates > 0 && strip(trial),
  );
}

/**
 * Where it would have fired first, each with some updates before and after.
 * @param {Trial} trial
 */
function* links({ run, count: fired, firings }) {
  const known = firings.filter(({ step }) => step !== null).slice(0, MOST_LINKS);
  if (known.length) yield ": from update ";
  for (const [i, firing] of known.entries()) {
    const step = /** @type {number} */ (firing.step);
    const query = `from=${Math.max(step - AROUND, 0)}&to=${(firing.until_step ?? step) + AROUND + 1}`;
    if (i) yield ", ";
    yield element("a", { href: `${root}/runs/${encodeURIComponent(run)}?${query}` }, count(step));
  }
  if (fired > known.length && known.length) yield ` and ${count(fired - known.length)} more`;
}

/** @param {Trial} trial */
function strip(trial) {
  const box = { class: "strip", viewBox: `0 0 ${WIDTH} 10`, preserveAspectRatio: "none", "aria-hidden": "true" };
  const bars = places(trial).map(({ start, width }) =>
    svg("rect", { x: start * WIDTH, y: 0, width: Math.max(width * WIDTH, 2), height: 10 }),
  );
  return svg("svg", box, ...bars);
}
