/** Numbers as people read them. Pure. */

/**
 * A loss scale: "2^16" for a power of two (elements.js raises it), else its digits. Not finite or absent: said in words.
 * @param {number | string | null | undefined} scale
 */
export function power(scale) {
  if (scale === null || scale === undefined) return "none";
  if (typeof scale === "string") return scale === "nan" ? "NaN" : scale;
  if (scale <= 0) return String(scale);
  const exponent = Math.log2(scale);
  return Number.isInteger(exponent) ? `2^${exponent}` : plainNumber(scale);
}

/**
 * @param {number} value
 * @returns {string}
 */
export function count(value) {
  return Math.round(value).toLocaleString("en");
}

/**
 * Up to four significant digits.
 * @param {number} value
 * @returns {string}
 */
export function plainNumber(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

/**
 * "3.4 k", "12 M".
 * @param {number} value
 * @returns {string}
 */
export function short(value) {
  for (const [unit, size] of /** @type {[string, number][]} */ ([
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
  ])) {
    if (Math.abs(value) >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return plainNumber(value);
}

/**
 * A share between 0 and 1. Something is never shown as nothing: a tiny share reads "< 0.01 %".
 * @param {number} share
 * @returns {string}
 */
export function percent(share) {
  if (share === 0) return "0 %";
  if (share < 1e-4) return "< 0.01 %";
  if (share < 0.1) return `${(share * 100).toFixed(2)} %`;
  return `${(share * 100).toFixed(1)} %`;
}

/**
 * @param {number} seconds
 * @returns {string}
 */
export function duration(seconds) {
  if (seconds < 1) return `${Math.max(seconds, 0).toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

/**
 * @param {number} octaves
 * @returns {string}
 */
export function octaves(octaves) {
  return `${octaves.toFixed(1).replace("-", "−")} oct`;
}

/**
 * What is said where there is no update: one may still come, or none will.
 * @param {import("./liveness.js").RunState} state
 * @returns {string}
 */
export function noUpdate(state) {
  return state === "finished" || state === "crashed" ? "ended without an update" : "no update yet";
}

/**
 * A time of day, in the reader's own zone.
 * @param {number} at seconds since the epoch
 * @returns {string}
 */
export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString("en-GB");
}

/**
 * A day and a time, in the reader's own zone.
 * @param {number} at seconds since the epoch
 */
export function dated(at) {
  return new Date(at * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}
