/**
 * Many pieces of news, one fetch at a time: the next starts once the last is drawn, and after a pause that leaves
 * both the page and the server half of their time: fetching and pausing take as long as drawing, or drawing and
 * pausing as long as fetching. Pure: the clock is given.
 *
 * @typedef {object} Timer
 * @property {() => number} now milliseconds
 * @property {(run: () => void, ms: number) => unknown} later
 */

// After a failure a server needs room to come back.
const AFTER_FAILURE_MS = 2000;
const LONGEST_PAUSE_MS = 5000;

export class Refetch {
  #fetch;
  #failed;
  /** @type {Timer} */ #timer;
  #wanted = false;
  #running = false;
  #held = false;
  #waiting = false;
  #notBefore = 0;

  /**
   * @param {() => Promise<() => Promise<void>>} fetch what it answers draws
   * @param {(error: unknown) => void} failed
   * @param {Timer} [timer]
   */
  constructor(fetch, failed, timer = { now: () => performance.now(), later: (run, ms) => setTimeout(run, ms) }) {
    this.#fetch = fetch;
    this.#failed = failed;
    this.#timer = timer;
  }

  /** There is something new. */
  ask() {
    this.#wanted = true;
    this.#step();
  }

  /** The reader drags or clicks: nothing may be redrawn. */
  hold() {
    this.#held = true;
  }

  release() {
    this.#held = false;
    this.#step();
  }

  /** Whether a redraw must not begin now. */
  get held() {
    return this.#held;
  }

  #step() {
    if (!this.#wanted || this.#running || this.#held || this.#waiting) return;
    const pause = this.#notBefore - this.#timer.now();
    if (pause > 0) {
      this.#waiting = true;
      this.#timer.later(() => {
        this.#waiting = false;
        this.#step();
      }, pause);
      return;
    }
    void this.#run();
  }

  async #run() {
    this.#wanted = false;
    this.#running = true;
    const began = this.#timer.now();
    let pause = AFTER_FAILURE_MS;
    try {
      const draw = await this.#fetch();
      const fetched = this.#timer.now();
      await draw();
      pause = Math.min(Math.abs(this.#timer.now() - fetched - (fetched - began)), LONGEST_PAUSE_MS);
    } catch (error) {
      this.#wanted = true;
      this.#failed(error);
    }
    this.#notBefore = this.#timer.now() + pause;
    this.#running = false;
    this.#step();
  }
}
