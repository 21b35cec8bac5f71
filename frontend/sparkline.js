/** A line of a few dozen points, without axes. */

import { svg } from "./elements.js";

const WIDTH = 150;
const HEIGHT = 30;
const ROOM = 3;

/**
 * The path of a step line through `values`; null leaves a gap. Pure.
 * @param {(number | null)[]} values
 * @returns {string}
 */
export function sparkPath(values) {
  const known = values.filter((value) => value !== null);
  if (known.length === 0) return "";
  const low = Math.min(...known);
  const span = Math.max(...known) - low;
  const y = (/** @type {number} */ value) =>
    span === 0 ? HEIGHT / 2 : ROOM + (1 - (value - low) / span) * (HEIGHT - 2 * ROOM);
  const step = WIDTH / Math.max(values.length, 1);
  let path = "";
  let drawing = false;
  values.forEach((value, i) => {
    if (value !== null) path += `${drawing ? "V" : `M${round(i * step)},`}${round(y(value))}H${round((i + 1) * step)}`;
    drawing = value !== null;
  });
  return path;
}

/**
 * @param {(number | null)[]} values log2 of the scale
 * @returns {SVGElement}
 */
export function sparkline(values) {
  const known = values.filter((value) => value !== null);
  const said = known.length
    ? `loss scale between 2^${Math.min(...known)} and 2^${Math.max(...known)}`
    : "no loss scale";
  const box = { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" };
  return svg("svg", { ...box, "aria-label": said }, svg("path", { d: sparkPath(values) }));
}

/** @param {number} value */
function round(value) {
  return Math.round(value * 10) / 10;
}
