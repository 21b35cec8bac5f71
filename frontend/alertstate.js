/**
 * How alerts stand, in words. Pure.
 *
 * @typedef {"info" | "warning" | "critical"} Severity
 * @typedef {"quiet" | "pending" | "firing" | "recovering" | "no data" | "error"} State
 * @typedef {State | "unanswered"} Standing unanswered: it fires, and whether it still would cannot be said now
 *
 * @typedef {"" | "%" | "ms" | "s"} Unit in which values are written: a share of 1 in "%", others as they are
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
 * @property {Unit} unit
 * @property {string | null} culprit
 * @property {string} sentence
 * @property {number} firings
 * @property {boolean} open its newest firing is not over
 * @property {number | null} acknowledged_at
 * @property {number | null} muted_until
 * @property {Transition[]} transitions the newest first
 * @property {Delivery[]} deliveries the newest first
 *
 * @typedef {object} AlertCount
 * @property {number | null} rule
 * @property {State} state
 * @property {boolean} open
 * @property {number} count
 */

import { count, duration, plainNumber } from "./format.js";

// The same room as in a message's link.
const AROUND = 200;
/** @type {Standing[]} */
const STANDINGS = ["firing", "unanswered", "recovering", "error", "pending", "no data", "quiet"];
const SEVERITIES = ["critical", "warning", "info"];

/**
 * Neither a lack of data nor an error ends a firing.
 * @param {{state: State, open: boolean}} alert
 * @returns {Standing}
 */
export function standing({ state, open }) {
  return open && (state === "no data" || state === "error") ? "unanswered" : state;
}

/** @param {{state: State, open: boolean}} alert */
export function stateText({ state, open }) {
  if (standing({ state, open }) !== "unanswered") return state;
  return state === "error" ? "firing, cannot be judged now" : "firing, no data now";
}

/**
 * What asks for somebody first: of an open firing that nobody has taken up, then by state and severity, the newest first.
 * @param {Alert[]} alerts
 * @returns {Alert[]}
 */
export function urgent(alerts) {
  const taken = (/** @type {Alert} */ alert) => Number(alert.acknowledged_at !== null);
  return [...alerts].sort(
    (a, b) =>
      STANDINGS.indexOf(standing(a)) - STANDINGS.indexOf(standing(b)) ||
      taken(a) - taken(b) ||
      SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity) ||
      b.since_at - a.since_at ||
      b.id - a.id,
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
 * @param {Unit} unit
 */
export function evidence({ value, culprit }, unit) {
  const told = value === null ? [] : [`value ${typeof value === "number" ? withUnit(value, unit) : value}`];
  if (culprit !== null) told.push(`culprit ${culprit}`);
  return told.join(" · ");
}

/**
 * @param {number} value
 * @param {Unit} unit
 */
function withUnit(value, unit) {
  if (unit === "%") return `${plainNumber(100 * value)}%`;
  if (unit === "s") return duration(value);
  return unit === "" ? plainNumber(value) : `${plainNumber(value)} ${unit}`;
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
 * How many alerts of each rule stand how.
 * @param {AlertCount[]} counts
 * @returns {Map<number, Map<Standing, number>>}
 */
export function standingsByRule(counts) {
  /** @type {Map<number, Map<Standing, number>>} */
  const rules = new Map();
  for (const each of counts) {
    if (each.rule === null) continue;
    const standings = rules.get(each.rule) ?? new Map();
    const how = standing(each);
    standings.set(how, (standings.get(how) ?? 0) + each.count);
    rules.set(each.rule, standings);
  }
  return rules;
}

/** @param {Map<Standing, number>} standings of a rule's alerts, without those that are quiet */
export function standingsText(standings) {
  const told = STANDINGS.filter((how) => how !== "no data" && standings.has(how)).map(
    (how) => `${standings.get(how)} ${how === "unanswered" ? "firing, not judged now" : how}`,
  );
  // That some run does not tell what a rule asks for is no news beside others.
  return told.join(" · ") || "quiet";
}
