/**
 * How alerts stand, in words. Pure.
 *
 * @typedef {"info" | "warning" | "critical"} Severity
 * @typedef {"quiet" | "pending" | "firing" | "recovering" | "no data" | "error"} State
 *
 * @typedef {object} Transition
 * @property {number} firing
 * @property {string} before
 * @property {string} after
 * @property {number | null} step
 * @property {number} at
 * @property {number | string | null} value
 * @property {string | null} culprit
 * @property {string} sentence
 *
 * @typedef {object} Delivery
 * @property {string} id
 * @property {string} channel
 * @property {number} firing
 * @property {string} happened
 * @property {number} at
 * @property {"waiting" | "delivered" | "failed" | "suppressed"} state
 * @property {number} attempts
 * @property {number | null} tried_at
 * @property {string | null} error
 *
 * @typedef {object} Alert
 * @property {number} id
 * @property {number | null} rule null once the rule is deleted
 * @property {string} name
 * @property {Severity} severity
 * @property {string} run
 * @property {string} run_name
 * @property {string} project
 * @property {State} state
 * @property {number | null} since_step
 * @property {number} since_at
 * @property {number | string | null} value
 * @property {string | null} culprit
 * @property {string} sentence
 * @property {number} firings
 * @property {boolean} open its newest firing is not over
 * @property {number | null} acknowledged_at
 * @property {number | null} muted_until
 * @property {Transition[]} transitions the newest first
 * @property {Delivery[]} deliveries the newest first
 */

import { count, duration, plainNumber } from "./format.js";

// The same room as in a message's link.
const AROUND = 200;
/** @type {State[]} */
export const STATES = ["firing", "recovering", "error", "pending", "no data", "quiet"];
const SEVERITIES = ["critical", "warning", "info"];

/**
 * What asks for somebody first: of an open firing that nobody has taken up, then by state and severity, the newest first.
 * @param {Alert[]} alerts
 * @returns {Alert[]}
 */
export function urgent(alerts) {
  const taken = (/** @type {Alert} */ alert) => Number(alert.acknowledged_at !== null);
  return [...alerts].sort(
    (a, b) =>
      STATES.indexOf(a.state) - STATES.indexOf(b.state) ||
      taken(a) - taken(b) ||
      SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity) ||
      b.since_at - a.since_at,
  );
}

/**
 * Since when an alert is as it is.
 * @param {Alert} alert
 * @param {number} now seconds since the epoch
 */
export function sinceText({ since_step, since_at }, now) {
  const ago = `${duration(Math.max(now - since_at, 0))} ago`;
  return since_step === null ? `since ${ago}` : `since update ${count(since_step)}, ${ago}`;
}

/**
 * What the rule saw, and whose it was; empty where it did not say.
 * @param {{value: number | string | null, culprit: string | null}} seen
 */
export function evidence({ value, culprit }) {
  const told = value === null ? [] : [`value ${typeof value === "number" ? plainNumber(value) : value}`];
  if (culprit !== null) told.push(`culprit ${culprit}`);
  return told.join(" · ");
}

/**
 * The run where the newest firing happened, with some updates before and after.
 * @param {Alert} alert
 * @param {string} root the server's published prefix
 */
export function viewOf(alert, root) {
  const page = `${root}/runs/${encodeURIComponent(alert.run)}`;
  const own = alert.transitions.filter(({ firing }) => firing > 0 && firing === alert.firings);
  const steps = [...own.map(({ step }) => step), own.length ? null : alert.since_step].filter((step) => step !== null);
  if (!steps.length) return page;
  return `${page}?from=${Math.max(Math.min(...steps) - AROUND, 0)}&to=${Math.max(...steps) + AROUND + 1}`;
}

/**
 * How many alerts of each rule are in which state.
 * @param {Alert[]} alerts
 * @returns {Map<number, Map<State, number>>}
 */
export function statesByRule(alerts) {
  /** @type {Map<number, Map<State, number>>} */
  const rules = new Map();
  for (const { rule, state } of alerts) {
    if (rule === null) continue;
    const states = rules.get(rule) ?? new Map();
    states.set(state, (states.get(state) ?? 0) + 1);
    rules.set(rule, states);
  }
  return rules;
}
