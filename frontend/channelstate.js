/**
 * How channels fare, in words. Pure.
 *
 * @typedef {object} Channel
 * @property {string} name
 * @property {"webhook" | "apprise" | "command"} kind
 * @property {string} target what may be shown of where it leads
 * @property {boolean} enabled
 * @property {number} waiting
 * @property {number} delivered
 * @property {number} failed
 * @property {string | null} error
 * @property {number | null} tried_at
 * @property {boolean | null} arrived
 */

import { count, duration } from "./format.js";

/**
 * How its last message fared.
 * @param {Pick<Channel, "tried_at" | "arrived" | "error">} channel
 * @param {number} now
 */
export function lastText({ tried_at, arrived, error }, now) {
  if (tried_at === null) return "No alert was told here yet.";
  const ago = `${duration(Math.max(now - tried_at, 0))} ago`;
  return arrived
    ? `The last message arrived, ${ago}.`
    : `The last message did not arrive, ${ago}: ${error ?? "no reason is known"}.`;
}

/** @param {Pick<Channel, "waiting" | "delivered" | "failed">} channel */
export function countsText({ waiting, delivered, failed }) {
  const told = [
    [delivered, "arrived"],
    [waiting, "waiting"],
    [failed, "given up"],
  ].filter(([many]) => many);
  return told.map(([many, words]) => `${count(Number(many))} ${words}`).join(" · ");
}

/** @param {{delivered: boolean, error: string | null, took_s: number}} trial */
export function trialText({ delivered, error, took_s }) {
  const after = took_s < 0.1 ? "at once" : `after ${duration(took_s)}`;
  return delivered ? `The test arrived ${after}.` : `The test did not arrive: ${error} (${after}).`;
}
