/**
 * The rules: what each watches, how its alerts stand, and its switch.
 *
 * @callback Switch
 * @param {Rule} rule
 * @param {boolean} enabled
 * @returns {Promise<Rule>} as it is then
 */

import { standingsText } from "./alertstate.js";
import { attempt } from "./attempt.js";
import { element, setText } from "./elements.js";
import { root } from "./fetching.js";
import { about, chosenRules } from "./rule.js";

/** @typedef {import("./rule.js").Rule} Rule */
/** @typedef {import("./rule.js").Standings} Standings */

const COLUMNS = ["on", "rule", "sentence", "severity", "alerts"];
const PAGE = 50;
// Fewer are seen at a glance.
const SEARCHED_FROM = 12;

/** A table whose rows stay the same elements while rules and alerts change. */
export class RuleTable {
  #onSwitch;
  /** @type {Rule[]} */ #rules = [];
  /** @type {Map<number, Standings>} */ #standings = new Map();
  /** @type {Map<number, Row>} */ #rows = new Map();
  #wanted = PAGE;
  #search = element("input", { type: "search", placeholder: "Filter the rules", "aria-label": "Filter the rules" });
  #found = element("span", { class: "note", role: "status" });
  #bar = element("p", { class: "filter rules-filter" }, this.#search, this.#found);
  #body = element("tbody");
  #more = element("button", { type: "button", hidden: true }, `Show ${PAGE} more`);

  /** @param {Switch} onSwitch */
  constructor(onSwitch) {
    this.#onSwitch = onSwitch;
    const head = element("tr", {}, ...COLUMNS.map((name) => element("th", { scope: "col" }, name)));
    const table = element("table", { class: "rules" }, element("thead", {}, head), this.#body);
    this.root = element("div", {}, this.#bar, table, this.#more);
    this.#search.addEventListener("input", () => {
      this.#wanted = PAGE;
      this.#draw();
    });
    this.#more.addEventListener("click", () => {
      this.#wanted += PAGE;
      this.#draw();
    });
  }

  /**
   * @param {Rule[]} rules
   * @param {Map<number, Standings>} standings of their alerts
   */
  show(rules, standings) {
    this.#rules = rules;
    this.#standings = standings;
    this.#draw();
  }

  #draw() {
    const found = chosenRules(this.#rules, this.#search.value);
    const shown = found.slice(0, this.#wanted).map((rule) => this.#row(rule));
    this.#bar.hidden = this.#rules.length < SEARCHED_FROM;
    this.#more.hidden = found.length <= this.#wanted;
    setText(this.#found, shown.length < this.#rules.length ? `${shown.length} of ${this.#rules.length} rules` : "");
    const old = [...this.#body.children];
    if (shown.length !== old.length || shown.some((row, i) => row !== old[i])) this.#body.replaceChildren(...shown);
  }

  /** @param {Rule} rule */
  #row(rule) {
    const row = this.#rows.get(rule.id) ?? new Row(rule, this.#onSwitch);
    this.#rows.set(rule.id, row);
    row.show(rule, this.#standings.get(rule.id) ?? new Map());
    return row.root;
  }
}

class Row {
  #rule;
  #onSwitch;
  #turning = false;
  /** @type {Standings} */ #standings = new Map();
  #turn = element("input", { type: "checkbox", role: "switch" });
  #name = element("a");
  #about = element("small");
  #when = element("code");
  #error = element("small", { class: "bad" });
  #problem = element("small", { class: "bad", role: "alert" });
  #severity = element("td", { class: "severity" });
  #states = element("td", { class: "states" });

  /**
   * @param {Rule} rule
   * @param {Switch} onSwitch
   */
  constructor(rule, onSwitch) {
    this.#rule = rule;
    this.#onSwitch = onSwitch;
    this.root = element(
      "tr",
      { "data-rule": rule.id },
      element("td", { class: "switch" }, this.#turn),
      element("td", { class: "name" }, this.#name, this.#about, this.#problem),
      element("td", { class: "when" }, this.#when, this.#error),
      this.#severity,
      this.#states,
    );
    this.#name.href = `${root}/alerts?rule=${rule.id}`;
    this.#turn.addEventListener("change", () => void this.#switch());
  }

  /**
   * @param {Rule} rule
   * @param {Standings} standings
   */
  show(rule, standings) {
    // What is under way may not have reached the server yet, and what was asked for before it is of a time before it.
    if (this.#turning || rule.revision < this.#rule.revision) return;
    this.#rule = rule;
    this.#standings = standings;
    this.#turn.checked = rule.enabled;
    this.#turn.setAttribute("aria-label", `${rule.name} is on`);
    setText(this.#name, rule.name);
    this.#name.title = rule.reason;
    setText(this.#about, about(rule));
    setText(this.#when, rule.when);
    setText(this.#error, rule.error ?? "");
    this.#severity.dataset.severity = rule.severity;
    setText(this.#severity, rule.severity);
    setText(this.#states, rule.enabled ? standingsText(standings) : "off");
    this.root.toggleAttribute("data-off", !rule.enabled);
    this.root.toggleAttribute("data-fires", standings.has("firing") || standings.has("unanswered"));
  }

  async #switch() {
    const enabled = this.#turn.checked;
    this.#turning = true;
    const failure = enabled ? "It is still off" : "It is still on";
    const rule = await attempt(this.#problem, failure, () => this.#onSwitch(this.#rule, enabled));
    this.#turning = false;
    this.show(rule ?? this.#rule, this.#standings);
  }
}
