/**
 * What a page shows, as its address holds it: copied, the address shows exactly this view. Pure.
 *
 * @typedef {object} View
 * @property {[number, number] | null} range the updates zoomed to; null follows the newest
 * @property {string} measure what the heat map shows
 * @property {string} match a part of the layers' names
 * @property {number | null} octaves log2 of the scale under the slider; null: as recorded
 * @property {number | null} rank whose lines the overview shows; null: those of the run
 */

/**
 * @param {string} search
 * @returns {View}
 */
export function readView(search) {
  const given = new URLSearchParams(search);
  const from = whole(given.get("from"));
  const to = whole(given.get("to"));
  const scale = given.get("scale");
  const octaves = scale === null || scale.trim() === "" ? Number.NaN : Number(scale);
  return {
    range: from !== null && to !== null && to > from ? [from, to] : null,
    measure: given.get("measure") ?? "subnormal_share",
    match: given.get("match") ?? "",
    octaves: Number.isFinite(octaves) ? octaves : null,
    rank: whole(given.get("rank")),
  };
}

/**
 * The query of an address, empty for the usual view.
 * @param {View} view
 * @returns {string}
 */
export function writeView(view) {
  const given = new URLSearchParams();
  if (view.range) {
    given.set("from", String(view.range[0]));
    given.set("to", String(view.range[1]));
  }
  if (view.measure !== "subnormal_share") given.set("measure", view.measure);
  if (view.match) given.set("match", view.match);
  if (view.octaves !== null) given.set("scale", String(view.octaves));
  if (view.rank !== null) given.set("rank", String(view.rank));
  const text = given.toString();
  return text && `?${text}`;
}

/**
 * The whole updates that a zoomed axis shows, `to` exclusive, at least one.
 * @param {[number, number]} axis
 * @returns {[number, number]}
 */
export function zoomed(axis) {
  const from = Math.max(Math.floor(Math.min(...axis)), 0);
  return [from, Math.max(Math.ceil(Math.max(...axis)) + 1, from + 1)];
}

/**
 * @param {string | null} text
 * @returns {number | null}
 */
function whole(text) {
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
}
