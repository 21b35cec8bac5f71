/**
 * The rules: what each watches, how its alerts stand, and its switch.
 *
 * @typedef {object} Rule
 * @property {number} id
 * @property {string} name
 * @property {string} when the sentence
 * @property {import("./alertstate.js").Severity} severity
 * @property {string} keep_firing
 * @property {string} project
 * @property {string} run
 * @property {string} tag
 * @property {string} text
 * @property {string[]} channels
 * @property {string} cooldown
 * @property {string} reason
 * @property {string} source
 * @property {boolean} enabled
 * @property {boolean} built_in of the pack that comes with the server
 * @property {boolean} edited
 * @property {string | null} error why it cannot be evaluated
 *
 * @typedef {Map<import("./alertstate.js").State, number>} States
 *
 * @typedef {Pick<Rule, "name" | "when" | "severity" | "keep_firing" | "project" | "run" | "tag" | "text" | "channels"
 *   | "cooldown" | "reason" | "source" | "enabled">} RuleGiven what the API takes
 */

import { STATES } from "./alertstate.js";
import { element } from "./elements.js";
import { root } from "./fetching.js";

const COLUMNS = ["on", "rule", "sentence", "severity", "alerts"];

/**
 * What the API takes of a rule, with `changes`.
 * @param {Rule} rule
 * @param {Partial<RuleGiven>} changes
 * @returns {RuleGiven}
 */
export function given(rule, changes) {
  const { id, built_in, edited, error, ...rest } = rule;
  const { created_at, changed_at, ...told } = /** @type {RuleGiven & Record<string, unknown>} */ (rest);
  return { ...told, ...changes };
}

/**
 * The user's own first.
 * @param {Rule[]} rules
 * @param {Map<number, States>} states of their alerts
 * @param {(rule: Rule, enabled: boolean) => void} onSwitch
 * @returns {HTMLTableElement}
 */
export function ruleTable(rules, states, onSwitch) {
  const ordered = [...rules].sort((a, b) => Number(a.built_in) - Number(b.built_in) || a.name.localeCompare(b.name));
  const head = COLUMNS.map((name) => element("th", { scope: "col" }, name));
  const rows = ordered.map((rule) => row(rule, states.get(rule.id) ?? new Map(), onSwitch));
  return element(
    "table",
    { class: "rules" },
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...rows),
  );
}

/**
 * @param {Rule} rule
 * @param {States} states
 * @param {(rule: Rule, enabled: boolean) => void} onSwitch
 */
function row(rule, states, onSwitch) {
  const turn = element("input", { type: "checkbox", role: "switch", "aria-label": `${rule.name} is on` });
  turn.checked = rule.enabled;
  turn.addEventListener("change", () => onSwitch(rule, turn.checked));
  const scope = [
    ["project", rule.project],
    ["run", rule.run],
    ["tag", rule.tag],
  ].filter(([, glob]) => glob !== "*");
  const about = [
    rule.built_in && (rule.edited ? "built-in, edited" : "built-in"),
    ...scope.map((part) => part.join(" ")),
  ];
  return element(
    "tr",
    { "data-rule": rule.id, "data-off": !rule.enabled, "data-fires": states.has("firing") },
    element("td", { class: "switch" }, turn),
    element(
      "td",
      { class: "name" },
      element("a", { href: `${root}/alerts?rule=${rule.id}`, title: rule.reason || null }, rule.name),
      element("small", {}, about.filter(Boolean).join(" · ")),
    ),
    element(
      "td",
      { class: "when" },
      element("code", {}, rule.when),
      rule.error && element("small", { class: "bad" }, rule.error),
    ),
    element("td", { class: "severity", "data-severity": rule.severity }, rule.severity),
    element("td", { class: "states" }, rule.enabled ? stateText(states) : "off"),
  );
}

/** @param {States} states */
function stateText(states) {
  const told = STATES.filter((state) => states.has(state)).map((state) => `${states.get(state)} ${state}`);
  return told.join(", ") || "quiet";
}
