/**
 * Many pieces of news, one fetch at a time: the next starts once the last is drawn, and after a pause that leaves
 * both the page and the server half of their time: fetching and pausing take as long as drawing, or drawing and
 * pausing as long as fetching. Pure: the clock is given.
 *
 * @typedef {object} Timer
 * @property {() => number} now milliseconds
 * @property {(run: () => void, ms: number) => unknown} later
 */

// After a failure a server needs room to come back; what failed again and again is tried ever more seldom.
const AFTER_FAILURE_MS = 2000;
const LONGEST_AFTER_FAILURE_MS = 60_000;
const LONGEST_PAUSE_MS = 5000;

export class Refetch {
  #fetch;
  #failed;
  /** @type {Timer} */ #timer;
  #wanted = false;
  #running = false;
  #held = false;
  #waiting = 0;
  #notBefore = 0;
  #failures = 0;
  // Counts the pauses: one that was cut short ends for nothing.
  #turns = 0;

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
    // News is a sign that it may go well now.
    if (this.#failures > 1) {
      this.#failures = 1;
      this.#notBefore = Math.min(this.#notBefore, this.#timer.now() + AFTER_FAILURE_MS);
      this.#waiting = 0;
    }
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
      const turn = ++this.#turns;
      this.#waiting = turn;
      this.#timer.later(() => {
        if (this.#waiting !== turn) return;
        this.#waiting = 0;
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
    let pause;
    try {
      const draw = await this.#fetch();
      const fetched = this.#timer.now();
      await draw();
      pause = Math.min(Math.abs(this.#timer.now() - fetched - (fetched - began)), LONGEST_PAUSE_MS);
      this.#failures = 0;
    } catch (error) {
      this.#wanted = true;
      pause = Math.min(AFTER_FAILURE_MS * 2 ** this.#failures++, LONGEST_AFTER_FAILURE_MS);
      this.#failed(error);
    }
    this.#notBefore = this.#timer.now() + pause;
    this.#running = false;
    this.#step();
  }
}
