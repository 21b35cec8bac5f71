/**
 * The headline numbers. Those of the news change at once, the others with the figures.
 *
 * @typedef {object} Headroom
 * @property {number} octaves
 * @property {string | null} by the parameter that bounds it
 * @property {boolean} less the room is less than these octaves
 *
 * @typedef {object} Headline
 * @property {Headroom | null} overflow
 * @property {Headroom | null} flush
 * @property {number | null} step_ms
 * @property {number | null} tokens_per_s
 * @property {number | null} tokens
 * @property {number | null} scheduler_steps
 */

import { element, setRaised, setText } from "./elements.js";
import { count, noUpdate, octaves, percent, plainNumber, power, short } from "./format.js";

export class Tiles {
  /** @type {Headline | null} */ #headline = null;
  #noHeadroom = noUpdate("running");

  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.scale = new Tile(parent, "loss scale");
    this.updates = new Tile(parent, "applied / attempted");
    this.overflow = new Tile(parent, "headroom to overflow");
    this.flush = new Tile(parent, "headroom to flush");
    this.speed = new Tile(parent, "time per update");
    this.delivery = new Tile(parent, "delivery");
  }

  /**
   * @param {object} run
   * @param {number | string | null} run.scale
   * @param {number} run.attempted
   * @param {number} run.applied
   * @param {number} run.skipped
   * @param {import("./liveness.js").RunState} run.state
   */
  showRun({ scale, attempted, applied, skipped, state }) {
    const none = noUpdate(state);
    const noScale = attempted ? "this run has no loss scaler" : none;
    this.scale.show(attempted ? power(scale) : "–", typeof scale === "number" ? digits(scale) : noScale);
    const skips = attempted ? `${count(skipped)} skipped · ${percent(skipped / attempted)}` : none;
    this.updates.show(`${count(applied)} / ${count(attempted)}`, skips);
    this.#noHeadroom = attempted && scale !== null ? "no fp16 sample yet" : noScale;
    this.#showHeadroom();
  }

  /** @param {Headline} headline */
  showHeadline(headline) {
    this.#headline = headline;
    this.#showHeadroom();
    const { step_ms, tokens_per_s } = headline;
    const speed = step_ms === null ? "–" : `${plainNumber(step_ms)} ms`;
    this.speed.show(speed, tokens_per_s === null ? "tokens not logged" : `${short(tokens_per_s)} tokens/s`);
  }

  #showHeadroom() {
    if (!this.#headline) return;
    this.overflow.show(...headroomTexts(this.#headline.overflow, this.#noHeadroom));
    this.flush.show(...headroomTexts(this.#headline.flush, this.#noHeadroom));
  }

  /** @param {import("./facts.js").LedgerRow[]} ledger */
  showLedger(ledger) {
    const total = (/** @type {"lost" | "dropped" | "received"} */ name) =>
      ledger.reduce((sum, row) => sum + row[name], 0);
    const ranks = new Set(ledger.map((row) => row.rank)).size;
    const detail = `${count(total("dropped"))} dropped · ${count(total("received"))} received${ranks > 1 ? ` · ${ranks} ranks` : ""}`;
    this.delivery.show(`${count(total("lost"))} lost`, detail, total("lost") > 0);
  }
}

/**
 * A scale spelled out; below 1 it is never rounded to nothing.
 * @param {number} scale
 */
function digits(scale) {
  return scale >= 1 ? count(scale) : plainNumber(scale);
}

class Tile {
  #value = element("p", { class: "value" }, "–");
  #detail = element("p", { class: "detail" }, "\u00a0");
  #root;

  /**
   * @param {HTMLElement} parent
   * @param {string} label
   */
  constructor(parent, label) {
    this.#root = element("div", { class: "tile" }, element("p", { class: "label" }, label), this.#value, this.#detail);
    parent.append(this.#root);
  }

  /**
   * @param {string} value
   * @param {string} detail
   * @param {boolean} [bad]
   */
  show(value, detail, bad = false) {
    setRaised(this.#value, value);
    this.#value.style.setProperty("--characters", String(value.length));
    setText(this.#detail, detail);
    this.#detail.title = detail;
    this.#root.dataset.tone = bad ? "bad" : "";
  }
}

/**
 * @param {Headroom | null} headroom
 * @param {string} none why there is none
 * @returns {[string, string, boolean]} value, detail, and whether the scale is too far already
 */
function headroomTexts(headroom, none) {
  if (!headroom) return ["–", none, false];
  const value = octaves(headroom.octaves);
  const by = headroom.by === null ? "a tensor not known" : headroom.by;
  const bad = headroom.octaves <= 0;
  if (!headroom.less) return [value, `at ${by}`, bad];
  return [bad ? "none" : `< ${value}`, `${by} overflowed`, bad];
}
