/**
 * Whether what a page shows is alive: three things can fall silent, and each is said in its own words. Pure.
 *
 * @typedef {"connecting" | "open" | "lost"} Connection
 * @typedef {"running" | "finished" | "crashed" | "silent"} RunState
 * @typedef {{kind: "connecting" | "live" | "stale" | "lost", text: string}} Liveness
 */

import { clock, duration } from "./format.js";

/** A trainer's link sends a sign of life well within this, even while its loop computes. */
export const STALE_AFTER_S = 20;

/**
 * @param {object} seen
 * @param {Connection} seen.connection
 * @param {RunState | null} seen.state of the run; null for a page that watches all runs
 * @param {number | null} seen.lastSeenAt of the trainer, by the server's clock
 * @param {number} seen.now by the server's clock
 * @param {number | null} seen.lostAt when the connection went, by the server's clock
 * @returns {Liveness}
 */
export function liveness({ connection, state, lastSeenAt, now, lostAt }) {
  if (connection === "lost") {
    return { kind: "lost", text: lostAt === null ? "server lost" : `server lost at ${clock(lostAt)}` };
  }
  if (connection === "connecting") return { kind: "connecting", text: "connecting" };
  if (state === null) return { kind: "live", text: "live" };
  const ago = duration(Math.max(now - (lastSeenAt ?? now), 0));
  if (state === "finished") return { kind: "live", text: `finished ${ago} ago` };
  if (state === "crashed") return { kind: "stale", text: `crashed ${ago} ago` };
  const silent = state === "silent" || now - (lastSeenAt ?? now) > STALE_AFTER_S;
  return silent ? { kind: "stale", text: `trainer silent for ${ago}` } : { kind: "live", text: `live, ${ago} ago` };
}
