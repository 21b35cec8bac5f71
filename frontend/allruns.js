/**
 * What pages about all runs share: news, the state of the connection, and one refetch at a time.
 *
 * @typedef {object} Parts what a page brings
 * @property {() => Promise<() => void>} load fetches what the page shows; what it answers shows it
 * @property {(told: boolean) => void} [onNews] of any run, with whether an alert was told of; else all is fetched anew
 */

import { Bell } from "./bell.js";
import { byId, setText } from "./elements.js";
import { AnswerError, root } from "./fetching.js";
import { clock } from "./format.js";
import { watchLive } from "./live.js";
import { liveness } from "./liveness.js";
import { watchPointer } from "./pressed.js";
import { Refetch } from "./refetch.js";
import { startTheme } from "./theme.js";

export class AllRunsPage {
  /** @type {import("./liveness.js").Connection} */ #connection = "connecting";
  /** @type {number | null} */ #lostAt = null;
  #clockAhead = 0;
  #problem = "";
  #bell = new Bell(byId("bell"));
  /** @type {Parts} */ #parts;
  #refetch;

  /** @param {Parts} parts */
  constructor(parts) {
    this.#parts = parts;
    this.#refetch = new Refetch(
      () => this.#fetch(),
      (error) => this.#failed(error),
    );
  }

  start() {
    startTheme(byId("theme"), () => undefined);
    watchPointer(
      () => this.#refetch.hold(),
      () => this.#refetch.release(),
    );
    this.ask();
    setInterval(() => this.#showLive(), 1000);
    watchLive(root, null, {
      onNews: (news) => {
        const told = this.#bell.take(news);
        if (this.#parts.onNews) this.#parts.onNews(told);
        else this.ask();
      },
      onAnew: () => this.ask(),
      onBeat: () => this.#bell.ask(),
      onConnection: (now) => {
        if (now === "lost" && this.#connection !== "lost") this.#lostAt = this.now;
        this.#connection = now;
        this.#showLive();
      },
      onClock: (now) => {
        this.#clockAhead = now - Date.now() / 1000;
      },
    });
  }

  /** Seconds since the epoch, by the server's clock. */
  get now() {
    return Date.now() / 1000 + this.#clockAhead;
  }

  /** Whether the reader presses the pointer: nothing may be made anew. */
  get held() {
    return this.#refetch.held;
  }

  /** Fetch and show again. */
  ask() {
    this.#refetch.ask();
  }

  /**
   * Say what went wrong, until the next answer.
   * @param {string} problem
   */
  tell(problem) {
    this.#problem = problem;
    this.#showLive();
  }

  async #fetch() {
    const show = await this.#parts.load();
    return async () => {
      if (this.held) {
        this.ask();
        return;
      }
      this.#problem = "";
      show();
      this.#showLive();
    };
  }

  /** @param {unknown} error */
  #failed(error) {
    if (!(error instanceof AnswerError)) throw error;
    this.#problem = error.status === 0 ? "" : `The server could not answer: ${error.message}.`;
    this.#showLive();
  }

  #showLive() {
    const seen = { connection: this.#connection, state: null, lastSeenAt: null };
    const { kind, text } = liveness({ ...seen, now: this.now, lostAt: this.#lostAt });
    document.documentElement.dataset.live = kind;
    setText(/** @type {Element} */ (byId("live").lastElementChild), text);
    const lost = `The server does not answer since ${clock(this.#lostAt ?? this.now)}. What you see is from then; this page reconnects by itself.`;
    const notice = kind === "lost" ? lost : this.#problem;
    byId("lost").hidden = notice === "";
    setText(byId("lost"), notice);
  }
}
