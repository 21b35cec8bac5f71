/**
 * The worst finding of each run as its sentence. A run's line holds only how many there are and how bad the worst
 * is, so the sentence is fetched when that changes, one run at a time and none twice.
 *
 * @typedef {import("./runlist.js").RunLine} RunLine
 */

import { fetchJson, runPath } from "./fetching.js";
import { ranked } from "./findings.js";

export class WorstFindings {
  /** @type {Map<string, string>} */ #sentences = new Map();
  #fetching = false;
  #onChange;

  /** @param {() => void} onChange a sentence arrived */
  constructor(onChange) {
    this.#onChange = onChange;
  }

  /** @param {RunLine} run */
  sentence(run) {
    return this.#sentences.get(keyOf(run)) ?? null;
  }

  /**
   * Fetch what is not known yet.
   * @param {RunLine[]} runs
   */
  async learn(runs) {
    if (this.#fetching) return;
    this.#fetching = true;
    for (const run of runs) {
      if (!run.worst || this.#sentences.has(keyOf(run))) continue;
      const answer = await fetchJson(runPath(run.id, "/findings")).catch(() => null);
      if (!answer) break;
      this.#sentences.set(keyOf(run), ranked(answer.items)[0]?.sentence ?? "");
      this.#onChange();
    }
    this.#fetching = false;
  }
}

/** @param {RunLine} run */
function keyOf(run) {
  return JSON.stringify([run.id, run.worst, run.findings]);
}
