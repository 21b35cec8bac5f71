/**
 * What a rule would have done on stored runs, as words. Pure.
 *
 * @typedef {object} Firing
 * @property {number} number
 * @property {number | null} step null: when only time had passed
 * @property {number | null} until_step null: it still fires at the last update
 * @property {number | null} steps
 * @property {number | null} seconds
 * @property {number | string | null} value
 * @property {string | null} culprit
 *
 * @typedef {object} Trial
 * @property {string} run
 * @property {string} name
 * @property {string} project
 * @property {boolean | null} healthy
 * @property {number} updates
 * @property {number | null} first_step
 * @property {number | null} last_step
 * @property {number} count how often it would have fired; `firings` are the first of them
 * @property {Firing[]} firings
 * @property {string} state
 * @property {string | null} error
 *
 * @typedef {object} Backtest
 * @property {Trial[]} runs
 * @property {number} updates
 * @property {number} count
 * @property {number} healthy_runs
 * @property {number} healthy_count
 */

import { count, duration } from "./format.js";

/**
 * How often it would have fired on a run and for how long.
 * @param {Trial} trial
 */
export function trialText({ updates, count: fired, firings, error, state }) {
  if (error !== null) return `It cannot be judged: ${error}`;
  if (!updates) return "No update is stored.";
  const over = `in ${count(updates)} ${updates === 1 ? "update" : "updates"}`;
  if (!fired)
    return state === "no data" ? `${times(0)} ${over}: the run does not tell what it asks for` : `${times(0)} ${over}`;
  return `${times(fired)} ${over}${lengths(firings)}`;
}

/**
 * How it did on those that somebody has marked healthy, where a firing is a false alarm.
 * @param {Backtest} found
 */
export function healthyText({ healthy_runs: runs, healthy_count: fired }) {
  if (!runs) return "No run is marked healthy yet: on one, each firing would be a false alarm.";
  return `${times(fired)} on ${runs === 1 ? "the run that is" : `the ${runs} runs that are`} marked healthy.`;
}

/**
 * Where firings lie between the first update tried and the last: each a start and a width between 0 and 1.
 * @param {Trial} trial
 * @returns {{start: number, width: number}[]}
 */
export function places({ first_step, last_step, firings }) {
  if (first_step === null || last_step === null) return [];
  const span = last_step - first_step + 1;
  return firings.map(({ step, until_step }) => {
    const from = Math.max((step ?? last_step) - first_step, 0);
    const to = (until_step ?? last_step + 1) - first_step;
    return { start: from / span, width: Math.max(to - from, 1) / span };
  });
}

/** @param {number} fired */
function times(fired) {
  if (fired === 0) return "Would not have fired";
  return `Would have fired ${fired === 1 ? "once" : `${count(fired)} times`}`;
}

/** @param {Firing[]} firings */
function lengths(firings) {
  const open = firings.some(({ until_step, seconds }) => until_step === null && seconds === null);
  const still = open ? ", still firing at the end" : "";
  const steps = firings.map(({ steps }) => steps).filter((steps) => steps !== null);
  if (steps.length) return `, for ${between(steps, count)} updates${firings.length > 1 ? " each" : ""}${still}`;
  const seconds = firings.map(({ seconds }) => seconds).filter((seconds) => seconds !== null);
  return seconds.length ? `, for ${between(seconds, duration)}${still}` : still;
}

/**
 * @param {number[]} values at least one
 * @param {(value: number) => string} written
 */
function between(values, written) {
  const [low, high] = [written(Math.min(...values)), written(Math.max(...values))];
  return low === high ? low : `${low} to ${high}`;
}
