/**
 * The last reference probe of a layer: the same micro-batch backward in the training's precision and in fp32.
 *
 * @typedef {object} LayerProbe
 * @property {number} step
 * @property {number | null} true_underflow
 * @property {number | null} relative_error
 * @property {number | null} cosine
 * @property {number} nonfinite
 * @property {number | null} estimate the flush share by a sample's histogram
 * @property {number | null} estimated_at
 */

import { element, fill } from "./elements.js";
import { count, percent, plainNumber } from "./format.js";

const HOW = "scope.probe(lambda: loss_fn(model(x), y))";

/**
 * @param {HTMLElement} parent
 * @param {LayerProbe | null} probe
 * @param {string | null} format that the gradient is computed in
 */
export function showProbe(parent, probe, format) {
  const low = format ?? "the training's precision";
  fill(parent, element("h2", {}, "Reference probe"), ...(probe ? found(probe, low) : nothing(low)));
}

/** @param {string} low */
function nothing(low) {
  return [
    element("p", { class: "grain" }, "None yet."),
    element(
      "p",
      { class: "note" },
      `The histogram can only estimate what ${low} loses. `,
      element("code", {}, HOW),
      " runs one micro-batch in fp32 as well, and tells it exactly.",
    ),
  ];
}

/**
 * @param {LayerProbe} probe
 * @param {string} low
 */
function found(probe, low) {
  const { true_underflow, relative_error, cosine, nonfinite, estimate, estimated_at } = probe;
  const share = (/** @type {number | null} */ value) => (value === null ? "–" : percent(value));
  const sampled = estimated_at === null ? "no sample" : `the sample of update ${count(estimated_at)}`;
  return [
    element("p", { class: "grain" }, `before update ${count(probe.step)}, one micro-batch in ${low} and in fp32`),
    element(
      "dl",
      { class: "answers" },
      answer("true underflow", share(true_underflow), `measured: zero in ${low}, of the non-zeros in fp32`),
      answer("flush share", share(estimate), `estimated from the histogram of ${sampled}`),
      answer("relative error", share(relative_error), "norm of the difference, of the norm in fp32"),
      answer("cosine", cosine === null ? "–" : cosineText(cosine), "between both gradients"),
    ),
    nonfinite > 0 &&
      element("p", { class: "warn" }, `${count(nonfinite)} elements overflowed in ${low}, and are left out here.`),
  ];
}

/**
 * A cosine near 1 says how near. Pure.
 * @param {number} cosine
 */
export function cosineText(cosine) {
  return cosine > 0.999 && cosine < 1 ? `1 − ${plainNumber(1 - cosine)}` : plainNumber(cosine);
}

/**
 * @param {string} name
 * @param {string} value
 * @param {string} detail
 */
function answer(name, value, detail) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value, element("small", {}, detail)));
}
