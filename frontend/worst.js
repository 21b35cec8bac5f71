/**
 * The worst finding of each run as its sentence. A run's line holds only how many there are and how bad the worst
 * is, so the sentence is fetched when that or the skips change, one run at a time.
 *
 * @typedef {import("./runlist.js").RunLine} RunLine
 */

import { fetchJson, runPath } from "./fetching.js";
import { ranked } from "./findings.js";

const REFRESH_MS = 5000;

export class WorstFindings {
  /** @type {Map<string, {text: string, key: string, skipped: number, at: number}>} */ #known = new Map();
  #fetching = false;
  #onChange;

  /** @param {() => void} onChange a sentence arrived */
  constructor(onChange) {
    this.#onChange = onChange;
  }

  /** @param {RunLine} run */
  sentence(run) {
    return this.#known.get(run.id)?.text ?? null;
  }

  /**
   * Fetch what is not known yet.
   * @param {RunLine[]} runs
   */
  async learn(runs) {
    if (this.#fetching) return;
    this.#fetching = true;
    for (const run of runs) {
      if (!run.worst || this.#isFresh(run)) continue;
      const answer = await fetchJson(runPath(run.id, "/findings")).catch(() => null);
      if (!answer) break;
      const text = ranked(answer.items)[0]?.sentence ?? "";
      this.#known.set(run.id, { text, key: keyOf(run), skipped: run.skipped, at: performance.now() });
      this.#onChange();
    }
    this.#fetching = false;
  }

  /**
   * The numbers in a sentence move with every skip, but need not be of this very second.
   * @param {RunLine} run
   */
  #isFresh(run) {
    const known = this.#known.get(run.id);
    if (known?.key !== keyOf(run)) return false;
    return known.skipped === run.skipped || performance.now() - known.at < REFRESH_MS;
  }
}

/** @param {RunLine} run */
function keyOf(run) {
  return JSON.stringify([run.worst, run.findings]);
}
