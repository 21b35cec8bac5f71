/** What an alert has been through, and what became of what was told of it. */

import { evidence } from "./alertstate.js";
import { element } from "./elements.js";
import { count } from "./format.js";

/** @typedef {import("./alertstate.js").Alert} Alert */

const MOVES = ["when", "from", "to", "update", "seen"];
const DELIVERIES = ["when", "channel", "told", "what became of it"];

/**
 * @param {Alert} alert
 * @returns {HTMLElement[]}
 */
export function pastOf({ transitions, deliveries }) {
  const moves = transitions.map((moved) => [
    dated(moved.at),
    moved.before,
    moved.after,
    moved.step === null ? "" : count(moved.step),
    [evidence(moved), moved.sentence].filter(Boolean).join(" · "),
  ]);
  const told = deliveries.map((line) => [dated(line.at), line.channel, line.happened, fate(line)]);
  return [
    element("h3", {}, "History"),
    table(MOVES, moves),
    element("h3", {}, "Deliveries"),
    told.length ? table(DELIVERIES, told) : element("p", { class: "note" }, "Nothing was told of it on any channel."),
  ];
}

/** @param {number} at seconds since the epoch */
export function dated(at) {
  return new Date(at * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

/** @param {import("./alertstate.js").Delivery} line */
function fate({ state, attempts, error }) {
  const tried = attempts > 1 ? ` after ${attempts} attempts` : "";
  return `${state}${tried}${error ? `: ${error}` : ""}`;
}

/**
 * @param {string[]} columns
 * @param {string[][]} rows
 */
function table(columns, rows) {
  const head = columns.map((name) => element("th", { scope: "col" }, name));
  const body = rows.map((row) => element("tr", {}, ...row.map((text) => element("td", {}, text))));
  const numbers = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": columns.join(", ") }, numbers);
}
