/**
 * Findings as sentences, with their evidence and what to do.
 *
 * @typedef {object} Finding
 * @property {string} code
 * @property {string} subject
 * @property {"info" | "warning" | "critical" | "fatal"} severity
 * @property {string} sentence
 * @property {Record<string, unknown>} evidence
 * @property {string} advice
 * @property {number} first_step
 * @property {number | null} last_step
 * @property {number} seen_step
 */

import { element, raisedText } from "./elements.js";
import { clock, count, plainNumber } from "./format.js";

const RANK = { fatal: 0, critical: 1, warning: 2, info: 3 };
// Longer lists are for the API; here they show what kind of evidence there is.
const MAX_LISTED = 8;

/**
 * Open ones first, then the worst; of those that are as bad, what began first, which is nearer to the cause. Pure.
 * @param {Finding[]} findings
 * @returns {Finding[]}
 */
export function ranked(findings) {
  const closed = (/** @type {Finding} */ finding) => Number(finding.last_step !== null);
  return [...findings].sort(
    (a, b) => closed(a) - closed(b) || RANK[a.severity] - RANK[b.severity] || a.first_step - b.first_step,
  );
}

/**
 * @param {Finding} finding
 * @param {(range: [number, number]) => void} onShow
 * @param {number | null} at when its first update was, seconds since the epoch, once that is known
 * @returns {HTMLElement}
 */
export function findingCard(finding, onShow, at) {
  const [from, to] = span(finding);
  const show = element("button", { type: "button", onclick: () => onShow(around(from, to)) }, "Show on the chart");
  const when = at === null ? "" : `, ${clock(at)}`;
  const state = finding.last_step === null ? ` · since update ${count(from)}${when}` : ` · over${when}`;
  return element(
    "article",
    { class: "finding", "data-severity": finding.severity },
    element("p", { class: "code" }, `${finding.severity.toUpperCase()} · ${finding.code}${state}`),
    element("p", { class: "sentence" }, ...raisedText(finding.sentence)),
    finding.advice && element("p", { class: "advice" }, `What to do: ${finding.advice}`),
    element(
      "p",
      { class: "note" },
      `Evidence: updates ${count(from)} to ${count(to)}${evidenceText(finding.evidence)}`,
    ),
    show,
  );
}

/**
 * Each piece of evidence in a few words. Pure.
 * @param {Record<string, unknown>} evidence
 * @returns {string}
 */
export function evidenceText(evidence) {
  const told = Object.entries(evidence).filter(([, value]) => value !== null && value !== undefined);
  return told.map(([name, value]) => ` · ${name.replaceAll("_", " ")} ${valueText(value)}`).join("");
}

/** @param {unknown} value */
function valueText(value) {
  if (Array.isArray(value)) {
    const rest = value.length > MAX_LISTED ? ` and ${value.length - MAX_LISTED} more` : "";
    return value.slice(0, MAX_LISTED).map(String).join(", ") + rest;
  }
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : plainNumber(value);
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

/**
 * @param {Finding} finding
 * @returns {[number, number]}
 */
function span(finding) {
  return [finding.first_step, Math.max(finding.last_step ?? finding.seen_step, finding.first_step)];
}

/**
 * With some room on both sides, so that what is shown is seen in its place.
 * @param {number} from
 * @param {number} to
 * @returns {[number, number]}
 */
export function around(from, to) {
  const room = Math.max(Math.round((to - from) * 0.1), 5);
  return [Math.max(from - room, 0), to + room + 1];
}
