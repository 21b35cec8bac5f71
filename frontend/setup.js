/**
 * What a training holds in memory and in which formats, as its trainer told.
 *
 * @typedef {object} StateRow
 * @property {string} optimizer
 * @property {number} group
 * @property {Record<string, string>} dtypes
 * @property {number} [eps]
 * @property {number} [eps_in_format]
 * @property {string} [eps_format]
 * @property {boolean} [eps_lost]
 *
 * @typedef {object} Setup
 * @property {Record<string, number | string>} [bytes]
 * @property {StateRow[]} [optimizer_state]
 * @property {string[]} [without_gradient]
 * @property {number} [requires_no_grad]
 * @property {string[][]} [tied]
 */

import { element, fill } from "./elements.js";
import { count, plainNumber } from "./format.js";

const PARTS = ["parameters", "gradients", "optimizer_state", "buffers"];
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
// Longer lists are for the API.
const MAX_NAMES = 8;

/**
 * @param {HTMLElement} parent
 * @param {Setup} setup
 */
export function showMemory(parent, setup) {
  const held = setup.bytes ?? {};
  const states = setup.optimizer_state ?? [];
  const without = setup.without_gradient ?? [];
  const peak = typeof held.peak === "number" && `peak ${bytes(held.peak)}, of the ${peakOf(held.peak_of)}`;
  fill(
    parent,
    element("h2", {}, "Memory and formats"),
    element("p", { class: "grain" }, peak || (setup.bytes ? "on this rank" : "The trainer has not told yet.")),
    element("dl", { class: "bytes" }, ...PARTS.flatMap((part) => partLine(part, held[part], largest(held)))),
    element("dl", { class: "facts words" }, ...states.flatMap(stateLine), ...frozen(setup), ...tied(setup)),
    without.length > 0 &&
      element(
        "p",
        { class: "warn" },
        element("b", {}, `${count(without.length)} without a gradient: `),
        `${listed(without)}. In the optimizer, and no loss has reached ${without.length === 1 ? "it" : "them"}.`,
      ),
  );
}

/**
 * A size in memory. Pure.
 * @param {number} size
 */
export function bytes(size) {
  const step = Math.min(Math.max(Math.floor(Math.log2(Math.max(size, 1)) / 10), 0), UNITS.length - 1);
  const value = size / 1024 ** step;
  return `${step ? value.toPrecision(3) : count(value)} ${UNITS[step]}`;
}

/**
 * What becomes of an optimizer's eps, in words; empty where it is kept. Pure.
 * @param {StateRow} row
 */
export function epsText({ eps, eps_in_format, eps_format, eps_lost }) {
  if (eps === undefined || eps_in_format === undefined) return "";
  if (eps_lost) return `eps ${plainNumber(eps)} is 0 in ${eps_format}: nothing keeps the division from zero`;
  const changed = Math.abs(eps_in_format - eps) > eps * 0.01;
  return changed ? `eps ${plainNumber(eps)} becomes ${plainNumber(eps_in_format)} in ${eps_format}` : "";
}

/** @param {StateRow} row */
function stateLine(row) {
  const kept = Object.entries(row.dtypes).map(([name, format]) => `${name} ${format}`);
  const eps = epsText(row);
  return [
    element("dt", {}, `state of ${row.optimizer}${row.group ? `, group ${row.group + 1}` : ""}`),
    element("dd", {}, kept.join(", ") || "none", eps && element("small", { class: row.eps_lost ? "bad" : "" }, eps)),
  ];
}

/** @param {Setup} setup */
function frozen({ requires_no_grad: n = 0 }) {
  return n ? [element("dt", {}, "frozen"), element("dd", {}, `${count(n)} parameter${n === 1 ? "" : "s"}`)] : [];
}

/** @param {Setup} setup */
function tied({ tied: groups = [] }) {
  return groups.length
    ? [element("dt", {}, "tied"), element("dd", {}, listed(groups.map((names) => names.join(" = "))))]
    : [];
}

/** @param {string[]} names */
function listed(names) {
  const rest = names.length > MAX_NAMES ? ` and ${names.length - MAX_NAMES} more` : "";
  return names.slice(0, MAX_NAMES).join(", ") + rest;
}

/**
 * @param {string} name
 * @param {number | string | undefined} size
 * @param {number} most
 */
function partLine(name, size, most) {
  if (typeof size !== "number") return [];
  const bar = element("i", { "aria-hidden": "true" });
  bar.style.setProperty("--share", String(most ? size / most : 0));
  return [element("dt", {}, name.replace("_", " ")), element("dd", {}, bar, element("span", {}, bytes(size)))];
}

/** @param {Record<string, number | string>} held */
function largest(held) {
  return Math.max(...PARTS.map((part) => Number(held[part] ?? 0)));
}

/** @param {unknown} of */
function peakOf(of) {
  return of === "cuda" ? "devices' allocations" : "process's resident memory";
}
