/**
 * What the loop was heard to do: what an ordinary window looks like, and, apart, those in which something was wrong.
 *
 * @typedef {object} Unusual
 * @property {string} kind
 * @property {"critical" | "warning" | "info"} severity
 * @property {string} title
 * @property {string} sentence
 * @property {number} updates
 * @property {number} first
 * @property {number} last
 * @property {[number, number][]} stretches the first ones of them
 *
 * @typedef {object} Told
 * @property {number} updates
 * @property {number | null} since
 * @property {number | null} micro_batches
 * @property {{name: string, follows: string} | null} scheduler
 * @property {{label: string, text: string, beside: string}[]} ordinary
 * @property {Unusual[]} unusual
 * @property {import("./setup.js").Setup} setup
 */

import { element, fill, raisedText } from "./elements.js";
import { around } from "./findings.js";
import { count } from "./format.js";

const MAX_STRETCHES = 6;

/**
 * @param {HTMLElement} parent
 * @param {Told} told
 */
export function showWindows(parent, told) {
  const since = told.since === null ? "" : `, since update ${count(told.since)}`;
  const info = told.unusual.filter(({ severity }) => severity === "info");
  const lines = told.ordinary.flatMap(({ label, text, beside }) => [
    element("dt", {}, label),
    element("dd", {}, text, beside && element("small", {}, beside)),
  ]);
  fill(
    parent,
    element("h2", {}, "An ordinary window"),
    element(
      "p",
      { class: "grain" },
      told.updates
        ? `what most windows have in common, of ${count(told.updates)} updates${since}`
        : "Nothing has been heard of the loop yet.",
    ),
    element("dl", { class: "facts words" }, ...lines),
    ...info.map((each) => element("p", { class: "note" }, `${each.title}, ${whereText(each)}. ${each.sentence}`)),
  );
}

/**
 * The windows in which something was wrong, one row each.
 * @param {HTMLElement} parent
 * @param {Unusual[]} unusual
 * @param {(range: [number, number]) => void} onShow
 */
export function showUnusual(parent, unusual, onShow) {
  const worth = unusual.filter(({ severity }) => severity !== "info");
  parent.hidden = worth.length === 0;
  fill(
    parent,
    element("h2", {}, "Unusual windows"),
    element("p", { class: "grain" }, "what the loop did that an ordinary one does not, and in which updates"),
    element("ul", { class: "unusual" }, ...worth.map((each) => row(each, onShow))),
  );
}

/**
 * In which updates, in a few words. Pure.
 * @param {Pick<Unusual, "updates" | "stretches">} unusual
 */
export function whereText({ updates, stretches }) {
  const told = stretches
    .slice(0, MAX_STRETCHES)
    .map(([first, last]) => (first === last ? count(first) : `${count(first)}–${count(last)}`));
  const one = updates === 1 ? "update" : "updates";
  const rest = stretches.length > MAX_STRETCHES ? " and later" : "";
  return `${count(updates)} ${one}: ${told.join(", ")}${rest}`;
}

/**
 * @param {Unusual} unusual
 * @param {(range: [number, number]) => void} onShow
 */
function row(unusual, onShow) {
  const { kind, severity, title, sentence, first, last } = unusual;
  return element(
    "li",
    { "data-severity": severity, "data-kind": kind },
    element(
      "div",
      {},
      element("p", { class: "title" }, element("b", {}, title), element("span", {}, whereText(unusual))),
      element("p", {}, ...raisedText(sentence)),
    ),
    element("button", { type: "button", onclick: () => onShow(around(first, last)) }, "Show on the chart"),
  );
}
