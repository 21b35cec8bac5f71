/**
 * What is known of a run beside its charts: the ledger of deliveries, the settings.
 *
 * @typedef {object} LedgerRow
 * @property {string} segment
 * @property {number} rank
 * @property {number} received
 * @property {number} duplicate
 * @property {number} dropped
 * @property {number} lost
 * @property {number} highest
 * @property {number} last_seen_at
 *
 * @typedef {object} Segment
 * @property {string} id
 * @property {number} ordinal
 * @property {number} started_at
 * @property {number | null} ended_at
 * @property {"finished" | "crashed" | null} end
 * @property {string | null} detail
 * @property {number} first_step
 *
 * @typedef {object} Run
 * @property {string} id
 * @property {string} project
 * @property {string} name
 * @property {import("./liveness.js").RunState} state
 * @property {string[]} tags
 * @property {number} started_at
 * @property {number} last_seen_at
 * @property {number} attempted
 * @property {number} applied
 * @property {number} skipped
 * @property {number | string | null} scale
 * @property {Record<string, number>} findings
 * @property {string | null} worst
 * @property {(number | null)[]} sparkline
 * @property {Record<string, unknown>} config
 * @property {Record<string, string>} environment
 * @property {Record<string, unknown> | null} scaler
 * @property {Record<string, any>[]} optimizers
 * @property {{name: string, numel: number, compute_format: string | null}[]} parameters
 * @property {Segment[]} segments
 * @property {number[]} ranks
 * @property {number} world_size
 * @property {(import("./ranks.js").Rank & {segment: string})[]} rank_states
 * @property {string[]} rank_sentences
 * @property {LedgerRow[]} ledger
 * @property {number} every
 */

import { element, fill } from "./elements.js";
import { clock, count, duration, plainNumber, short } from "./format.js";
import { cpuText, sentText } from "./ranks.js";

/**
 * One line under the name: where the run stands in the world.
 * @param {Run} run
 * @param {number} now
 */
export function aboutText(run, now) {
  const formats = new Set(run.parameters.map((parameter) => parameter.compute_format).filter(Boolean));
  const size = run.parameters.reduce((sum, parameter) => sum + parameter.numel, 0);
  return [
    run.project,
    size ? `${short(size)} parameters in ${count(run.parameters.length)} tensors` : "",
    [...formats].join(" + "),
    run.optimizers.map((optimizer) => optimizer.name).join(" + "),
    `${count(run.world_size)} rank${run.world_size === 1 ? "" : "s"}`,
    `started ${duration(Math.max(now - run.started_at, 0))} ago`,
    ...run.tags,
  ]
    .filter(Boolean)
    .join(" · ");
}

/**
 * How the last start of a crashed run ended, in one sentence; empty for any other run.
 * @param {Run} run
 */
export function crashText({ state, segments, attempted }) {
  const last = segments.at(-1);
  if (state !== "crashed" || last?.end !== "crashed") return "";
  const at = last.ended_at === null ? "" : ` at ${clock(last.ended_at)}`;
  return `The trainer crashed${at}, after ${count(attempted)} updates${last.detail ? `: ${last.detail}` : "."}`;
}

/**
 * @param {HTMLElement} parent
 * @param {Run} run
 */
export function showLedger(parent, run) {
  const segment = new Map(run.segments.map(({ id, ordinal }) => [id, ordinal]));
  const rows = run.ledger.map((row) => [
    String(row.rank),
    `${(segment.get(row.segment) ?? 0) + 1}`,
    count(row.received),
    `${count(row.lost)} lost, ${count(row.dropped)} dropped`,
    count(row.duplicate),
    ...(run.world_size === 1 ? costTexts(run, row) : []),
    clock(row.last_seen_at),
  ]);
  // Of several ranks what the newest start cost stands beside how each fares.
  const costs = run.world_size === 1 ? ["sent", "hook thread"] : [];
  const names = ["rank", "start", "received", "delivery", "sent again", ...costs, "last seen"];
  fill(
    parent,
    element("h2", {}, "Delivery"),
    element(
      "p",
      { class: "grain" },
      "messages of each rank; sent again and stored once, dropped by the trainer's own policy",
    ),
    element("div", { class: "scroll" }, tableElement(names, rows)),
  );
}

/**
 * What the newest start of a rank has put on the wire, and what its thread took.
 * @param {Run} run
 * @param {LedgerRow} row
 */
function costTexts(run, row) {
  const rank = run.rank_states.find(({ rank, segment }) => rank === row.rank && segment === row.segment);
  return rank ? [sentText(rank), cpuText(rank)] : ["–", "–"];
}

/**
 * @param {HTMLElement} parent
 * @param {Run} run
 */
export function showSettings(parent, run) {
  const ends = run.segments
    .filter((segment) => segment.end !== null)
    .map((segment) => [`start ${segment.ordinal + 1}`, `${segment.end}${segment.detail ? `: ${segment.detail}` : ""}`]);
  const pairs = [
    ...ends,
    ["sampled every", `${run.every} updates and at each skip`],
    ...flat("scaler", run.scaler ?? {}),
    ...run.optimizers.flatMap((optimizer) => flat("optimizer", optimizer)),
    ...flat("config", run.config),
    ...Object.entries(run.environment),
  ];
  fill(
    parent,
    element(
      "details",
      {},
      element("summary", {}, "Settings and environment"),
      element(
        "dl",
        { class: "facts" },
        ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
      ),
    ),
  );
}

/**
 * @param {string} prefix
 * @param {Record<string, unknown>} values
 * @returns {[string, string][]}
 */
function flat(prefix, values) {
  return Object.entries(values).flatMap(([name, value]) => {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      return flat(prefix, /** @type {Record<string, unknown>} */ (value));
    }
    const text =
      typeof value === "number" ? numberText(value) : Array.isArray(value) ? JSON.stringify(value) : String(value);
    return [/** @type {[string, string]} */ ([`${prefix} ${name.replaceAll("_", " ")}`, text])];
  });
}

/** @param {number} value */
function numberText(value) {
  return Number.isSafeInteger(value) ? count(value) : plainNumber(value);
}

/**
 * @param {string[]} names
 * @param {string[][]} rows
 */
function tableElement(names, rows) {
  const cells = rows.map((row) => row.map((text, i) => element("td", { "data-label": names[i] ?? "" }, text)));
  return element(
    "table",
    { class: "ledger" },
    element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...cells.map((row) => element("tr", {}, ...row))),
  );
}
