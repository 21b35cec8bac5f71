/**
 * What a gradient would lose at another loss scale, reckoned from its exponent histograms. Pure.
 *
 * The same rules as the server's numerics: a golden file in the tests holds both to them.
 *
 * @typedef {object} Reading one bucket of samples at one scale; `counts[i]` is of exponent `low + i`
 * @property {number} step
 * @property {number | null} scale
 * @property {boolean} periodic
 * @property {number} samples
 * @property {number} low
 * @property {number[]} counts
 * @property {number} zero
 * @property {number} inf
 * @property {number} nan
 * @property {number} amax
 *
 * @typedef {{low: number, high: number}} Bounds
 *
 * @typedef {object} Answer
 * @property {Bounds} flush share of the non-zero elements
 * @property {Bounds} overflow count of elements
 * @property {number} elements finite non-zero elements it rests on
 * @property {number} samples
 * @property {number | null} headroom octaves between the largest value and 65504; null without one
 */

const FLUSH_EXPONENT = -25;
const OVERFLOW_FROM = 65520;
const MAX_FINITE = 65504;

/**
 * @param {Reading[]} readings samples of usual updates are used, others only where there are none
 * @param {number} octaves log2 of the scale asked about
 * @returns {Answer}
 */
export function whatIf(readings, octaves) {
  const periodic = readings.filter((reading) => reading.periodic);
  const used = periodic.length > 0 ? periodic : readings;
  const flush = { low: 0, high: 0 };
  const overflow = { low: 0, high: 0 };
  let elements = 0;
  let samples = 0;
  let amax = 0;
  for (const reading of used) {
    const shift = octaves - levelOf(reading);
    add(flush, flushed(reading, shift));
    add(overflow, overflowed(reading, shift));
    elements += reading.counts.reduce((sum, n) => sum + n, 0);
    samples += reading.samples;
    amax = Math.max(amax, reading.amax * 2 ** shift);
  }
  const share = { low: flush.low / Math.max(elements, 1), high: flush.high / Math.max(elements, 1) };
  return { flush: share, overflow, elements, samples, headroom: amax > 0 ? Math.log2(MAX_FINITE / amax) : null };
}

/**
 * Where fp16's limits lie on a chart whose columns stand at the scales `columns` (log2), if the scale were `octaves`.
 * @param {(number | null)[]} columns
 * @param {number | null} octaves null: at their own scales
 * @param {number} limit the limit's exponent
 * @returns {number[]} a height for each column's left edge, and one for the last right edge
 */
export function limitLine(columns, octaves, limit) {
  let level = columns.find((column) => column !== null) ?? 0;
  const heights = columns.map((column) => {
    level = column ?? level;
    return octaves === null ? limit : limit + level - octaves;
  });
  return [...heights, heights.at(-1) ?? limit];
}

/** @param {Reading} reading */
export function levelOf(reading) {
  return reading.scale !== null && reading.scale > 0 ? Math.log2(reading.scale) : 0;
}

/**
 * @param {Reading} reading
 * @param {number} shift octaves
 * @returns {Bounds}
 */
function flushed(reading, shift) {
  const exponent = FLUSH_EXPONENT - shift;
  const edge = Math.floor(exponent) - reading.low;
  let low = 0;
  for (let i = 0; i < Math.min(edge, reading.counts.length); i++) low += reading.counts[i] ?? 0;
  return { low, high: low + (reading.counts[edge] ?? 0) };
}

/**
 * @param {Reading} reading
 * @param {number} shift octaves
 * @returns {Bounds}
 */
function overflowed(reading, shift) {
  const edge = OVERFLOW_FROM * 2 ** -shift;
  const bin = Math.floor(Math.log2(edge)) - reading.low;
  let above = 0;
  for (let i = Math.max(bin + 1, 0); i < reading.counts.length; i++) above += reading.counts[i] ?? 0;
  if (reading.amax < edge) return { low: above, high: above };
  const inside = reading.counts[bin] ?? 0;
  return { low: above === 0 ? Math.min(inside, 1) : above, high: above + inside };
}

/**
 * @param {Bounds} sum
 * @param {Bounds} more
 */
function add(sum, more) {
  sum.low += more.low;
  sum.high += more.high;
}
