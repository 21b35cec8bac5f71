/**
 * How each rank of a run fares: a cell each to see at a glance who is missing, and a row each with its numbers.
 *
 * @typedef {"running" | "stalled" | "silent" | "crashed" | "finished" | "absent"} RankState
 *
 * @typedef {object} Rank
 * @property {number} rank
 * @property {RankState} state
 * @property {number | null} last_step
 * @property {number | null} lag
 * @property {number} attempted
 * @property {number} skipped
 * @property {number | string | null} scale
 * @property {number} received
 * @property {number} dropped
 * @property {number} lost
 * @property {number | null} sent_bytes
 * @property {number | null} bytes_per_update
 * @property {number | null} thread_cpu_s
 * @property {number | null} last_seen_at
 *
 * @typedef {object} Ranks
 * @property {number} world_size
 * @property {Rank[]} rank_states
 * @property {string[]} rank_sentences
 */

import { element, fill, raisedText } from "./elements.js";
import { clock, count, plainNumber, power } from "./format.js";
import { bytes } from "./setup.js";

// Of fewer, the rows alone are seen at a glance.
const FEW = 8;
// Each has a sign of its own beside its colour.
/** @type {Record<RankState, string>} */
const SIGNS = { crashed: "✕", silent: "?", stalled: "‖", absent: "–", running: "", finished: "✓" };

/**
 * @param {HTMLElement} parent
 * @param {Ranks} run
 */
export function showRanks(parent, { world_size, rank_states }) {
  parent.hidden = world_size <= 1;
  if (parent.hidden) return;
  const scroll = parent.querySelector(".scroll")?.scrollTop ?? 0;
  fill(
    parent,
    element("h2", {}, "Ranks"),
    element("p", { class: "grain" }, statesText(rank_states, world_size)),
    rank_states.length > FEW && cells(rank_states),
    element(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ranks one by one" },
      table(rank_states),
    ),
  );
  const box = parent.querySelector(".scroll");
  if (box) box.scrollTop = scroll;
}

/**
 * What is the matter with them, above everything else.
 * @param {HTMLElement} parent
 * @param {Ranks} run
 */
export function showRankTrouble(parent, { rank_sentences }) {
  parent.hidden = rank_sentences.length === 0;
  fill(parent, ...rank_sentences.map((sentence) => element("p", {}, sentence)));
}

/**
 * Such as "4 ranks: 3 running, 1 silent". Pure.
 * @param {Pick<Rank, "state">[]} ranks
 * @param {number} worldSize
 */
export function statesText(ranks, worldSize) {
  const states = /** @type {RankState[]} */ (["running", "finished", "stalled", "silent", "crashed"]);
  const told = states
    .map((state) => /** @type {[string, number]} */ ([state, ranks.filter((rank) => rank.state === state).length]))
    .filter(([, many]) => many > 0)
    .map(([state, many]) => `${count(many)} ${state}`);
  const absent = worldSize - ranks.filter((rank) => rank.state !== "absent").length;
  if (absent > 0) told.push(`${count(absent)} not heard of`);
  return `${count(worldSize)} ranks: ${told.join(", ")}`;
}

/** @param {Rank[]} ranks */
function cells(ranks) {
  const made = ranks.map((rank) =>
    element(
      "li",
      { "data-state": rank.state, title: `rank ${rank.rank}: ${stateText(rank)}` },
      element("b", {}, String(rank.rank)),
      element("i", { "aria-hidden": "true" }, SIGNS[rank.state]),
    ),
  );
  return element("ul", { class: "cells", "aria-hidden": "true" }, ...made);
}

/** @param {Rank[]} ranks */
function table(ranks) {
  const names = ["rank", "state", "last update", "behind", "skipped", "scale", "delivery", "sent", "hook thread"];
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  return element(
    "table",
    { class: "ranks" },
    element("thead", {}, head),
    element("tbody", {}, ...ranks.map((rank) => row(rank, names))),
  );
}

/**
 * @param {Rank} rank
 * @param {string[]} names
 */
function row(rank, names) {
  const texts = [
    rank.last_step === null ? "none" : count(rank.last_step),
    rank.lag === null ? "–" : count(rank.lag),
    `${count(rank.skipped)} of ${count(rank.attempted)}`,
    power(rank.scale),
    `${count(rank.received)} received, ${count(rank.dropped)} dropped, ${count(rank.lost)} lost`,
    sentText(rank),
    cpuText(rank),
  ];
  const cells = rank.state === "absent" ? texts.map(() => "–") : texts;
  return element(
    "tr",
    { "data-state": rank.state },
    element("th", { scope: "row" }, String(rank.rank)),
    element("td", { class: "state", "data-label": "state" }, stateText(rank)),
    ...cells.map((text, i) => element("td", { "data-label": names[i + 2] ?? "" }, ...raisedText(text))),
  );
}

/** @param {Pick<Rank, "state" | "last_seen_at">} rank */
function stateText({ state, last_seen_at }) {
  if (state === "absent") return "not heard of";
  return state === "silent" && last_seen_at !== null ? `silent since ${clock(last_seen_at)}` : state;
}

/**
 * What a rank has put on the wire, in all and for each update. Pure.
 * @param {Pick<Rank, "sent_bytes" | "bytes_per_update">} rank
 */
export function sentText({ sent_bytes, bytes_per_update }) {
  if (sent_bytes === null || sent_bytes === 0) return "–";
  return bytes_per_update === null ? bytes(sent_bytes) : `${bytes(sent_bytes)}, ${bytes(bytes_per_update)} an update`;
}

/**
 * The CPU time of the hook's own thread. Pure.
 * @param {Pick<Rank, "thread_cpu_s">} rank
 */
export function cpuText({ thread_cpu_s }) {
  if (thread_cpu_s === null) return "–";
  return thread_cpu_s < 1 ? `${Math.round(thread_cpu_s * 1000)} ms of CPU` : `${plainNumber(thread_cpu_s)} s of CPU`;
}
