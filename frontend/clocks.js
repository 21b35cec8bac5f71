/**
 * The clocks of a training, told apart: what the data, the loop, the optimizer and the scheduler have counted.
 *
 * @typedef {object} Counts
 * @property {number} attempted
 * @property {number} applied
 * @property {number} skipped
 * @property {import("./liveness.js").RunState} state
 *
 * @typedef {object} Known what is told of the other clocks, null where nothing was heard
 * @property {number | null} tokens
 * @property {number | null} microBatches
 * @property {number | null} steps of the scheduler
 * @property {{name: string, follows: string} | null} scheduler
 */

import { element, fill } from "./elements.js";
import { count, noUpdate, short } from "./format.js";

/**
 * @param {HTMLElement} parent
 * @param {Counts} counts
 * @param {Known} known
 */
export function showClocks(parent, counts, known) {
  const { attempted, applied } = counts;
  const { scheduler, steps } = known;
  fill(
    parent,
    element("h2", {}, "Clocks"),
    element("p", { class: "grain" }, "what the data, the loop, the optimizer and the scheduler have counted"),
    element(
      "dl",
      { class: "clocks" },
      ...clock(...dataText(known)),
      ...clock("attempted", count(attempted)),
      ...clock("applied", count(applied)),
      ...clock(scheduler ? "scheduler steps" : "scheduler", steps === null ? "none" : count(steps)),
    ),
    element("p", { class: "note" }, lossText(counts)),
    scheduler && element("p", { class: "note" }, scheduleText(counts, scheduler, steps)),
  );
}

/**
 * The clock of the data: what was logged of it, else what was heard.
 * @param {Known} known
 * @returns {[string, string]}
 */
function dataText({ tokens, microBatches }) {
  if (tokens !== null) return ["tokens", short(tokens)];
  if (microBatches !== null && microBatches > 0) return ["micro-batches", count(microBatches)];
  return ["tokens", "not logged"];
}

/**
 * What the skipped updates cost. Pure.
 * @param {Counts} counts
 */
export function lossText({ attempted, applied, skipped, state }) {
  if (!attempted) return `${noUpdate(state).replace(/^./, (first) => first.toUpperCase())}.`;
  if (!skipped) return "Each attempted update was applied.";
  const were = skipped === 1 ? "1 update" : `${count(skipped)} updates`;
  return `${were} saw ${skipped === 1 ? "its" : "their"} data and changed nothing: ${count(applied)} of ${count(attempted)} moved the weights.`;
}

/**
 * Which clock the scheduler follows, and by how much the two differ. Pure.
 * @param {Counts} counts
 * @param {{name: string, follows: string}} scheduler
 * @param {number | null} steps
 */
export function scheduleText({ attempted, applied, skipped }, { name, follows }, steps) {
  if (follows === "attempted") {
    const lead = skipped === 1 ? "1 step" : `${count(skipped)} steps`;
    return skipped
      ? `${name} follows attempted updates: the learning rate is ${lead} ahead of the weights.`
      : `${name} follows attempted updates.`;
  }
  if (follows === "applied") return `${name} follows applied updates: the learning rate rests where the weights do.`;
  if (steps !== null && steps !== attempted && steps !== applied) {
    return `${name} stepped ${count(steps)} times: it follows neither attempted nor applied updates.`;
  }
  return `No skip has told yet whether ${name} follows attempted or applied updates.`;
}

/**
 * @param {string} name
 * @param {string} value
 */
function clock(name, value) {
  return [element("div", {}, element("dt", {}, name), element("dd", {}, value))];
}
