/**
 * What the pages of one run share: news, the state of the connection, following, and one refetch at a time.
 *
 * @typedef {import("./live.js").News} News
 * @typedef {import("./view.js").View} View
 *
 * @typedef {object} Parts what a page brings
 * @property {() => Promise<{step: number | null, draw: () => Promise<void>}>} load fetches what is in view
 * @property {(news: News) => void} [onNews] headline numbers, shown at once
 * @property {() => void} [onBeat] every few seconds
 * @property {(range: [number, number]) => void} onRange the time axis was moved
 */

import { Bell } from "./bell.js";
import { byId, element, fill, setText } from "./elements.js";
import { AnswerError, root } from "./fetching.js";
import { clock } from "./format.js";
import { watchLive } from "./live.js";
import { liveness } from "./liveness.js";
import { watchPointer } from "./pressed.js";
import { Refetch } from "./refetch.js";
import { currentTheme, startTheme } from "./theme.js";
import { readView, writeView, zoomed } from "./view.js";

const PHONE = matchMedia("(max-width: 760px)");

export class RunPage {
  /** @type {View} */ view = readView(location.search);
  run = document.documentElement.dataset.run ?? "";
  /** @type {import("./liveness.js").RunState | null} */ #state = null;
  /** @type {string | null} */ #problem = null;
  #gone = false;
  /** @type {import("./liveness.js").Connection} */ #connection = "connecting";
  /** @type {number | null} */ #lostAt = null;
  /** @type {number | null} */ #lastSeenAt = null;
  #clockAhead = 0;
  #follow = byId("follow");
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
    watchPointer(
      () => this.#refetch.hold(),
      () => this.#refetch.release(),
    );
    startTheme(byId("theme"), () => this.ask());
    PHONE.addEventListener("change", () => this.ask());
    this.#follow.addEventListener("click", () => (this.view.range ? this.zoom(null) : this.#hold()));
    addEventListener("keydown", (event) => this.#key(event));
    addEventListener("popstate", () => {
      this.view = readView(location.search);
      this.ask();
    });
    this.#showFollow();
    this.ask();
    watchLive(root, this.run, {
      onNews: (news) => this.#take(news),
      onAnew: () => this.ask(),
      onBeat: ({ last_seen_at }) => {
        this.#lastSeenAt = last_seen_at ?? this.#lastSeenAt;
        this.#bell.ask();
        this.#parts.onBeat?.();
      },
      onConnection: (connection) => this.#connected(connection),
      onClock: (now) => {
        this.#clockAhead = now - Date.now() / 1000;
      },
    });
    setInterval(() => this.#showLive(), 500);
  }

  /** Seconds since the epoch, by the server's clock. */
  get now() {
    return Date.now() / 1000 + this.#clockAhead;
  }

  /** Whether the reader presses the pointer: nothing may be made anew. */
  get held() {
    return this.#refetch.held;
  }

  /** Fetch and draw again what is in view. */
  ask() {
    this.#refetch.ask();
  }

  /** The reader of the plots, for each card. */
  get reader() {
    return {
      /** @param {[number, number] | null} range */
      onZoom: (range) => this.zoom(range && zoomed(range)),
    };
  }

  /** @param {[number, number] | null} range updates, the end exclusive; null: all, following the newest */
  zoom(range) {
    this.change({ range });
    if (range) this.#parts.onRange(range);
  }

  /** @param {Partial<View>} changes */
  change(changes) {
    this.view = { ...this.view, ...changes };
    this.keepAddress();
    this.#showFollow();
    this.ask();
  }

  /** Let the address hold the view. */
  keepAddress() {
    history.replaceState(null, "", location.pathname + writeView(this.view) + location.hash);
  }

  /**
   * The query that all figures share.
   * @param {number} points
   */
  query(points) {
    const query = new URLSearchParams({ palette: currentTheme(), points: String(points) });
    if (PHONE.matches) query.set("compact", "true");
    if (this.view.range) {
      query.set("from", String(this.view.range[0]));
      query.set("to", String(this.view.range[1]));
    }
    return query;
  }

  /**
   * What the time axis shows when the reader chose it. Ask when drawing: they may have chosen since the data was asked for.
   * @returns {[number, number] | null}
   */
  get axis() {
    return this.view.range && [this.view.range[0] - 0.5, this.view.range[1] - 0.5];
  }

  /**
   * What a fetched run says of itself, for the time before the first news.
   * @param {{state: import("./liveness.js").RunState, last_seen_at: number}} run
   */
  learn({ state, last_seen_at }) {
    this.#state = state;
    this.#lastSeenAt = Math.max(last_seen_at, this.#lastSeenAt ?? 0);
    document.documentElement.dataset.state = state;
    this.#showLive();
  }

  async #fetch() {
    // The reader may choose another range before this one is drawn.
    const { range } = this.view;
    const { step, draw } = await this.#parts.load();
    const last = range ? Math.min(step ?? -1, range[1] - 1) : step;
    return () => this.#draw(last, draw);
  }

  /**
   * @param {number | null} last the newest update in what is drawn
   * @param {() => Promise<void>} draw
   */
  async #draw(last, draw) {
    if (this.#refetch.held) {
      // The pointer was pressed meanwhile: keep the picture still and fetch again afterwards.
      this.#refetch.ask();
      return;
    }
    await draw();
    this.#problem = null;
    this.#gone = false;
    if (last !== null && last >= 0) document.documentElement.dataset.drawnStep = String(last);
    this.#showLive();
  }

  /** @param {unknown} error */
  #failed(error) {
    if (!(error instanceof AnswerError)) throw error;
    // A server that cannot be reached at all is told by the live connection.
    if (error.status === 0) return;
    this.#gone = error.status === 404;
    this.#problem = this.#gone
      ? `There is no such run or layer: ${error.message}. Once there is, this page shows it. `
      : `The server could not answer: ${error.message}.`;
    this.#showLive();
  }

  /** @param {News} news */
  #take(news) {
    this.learn(news);
    this.#bell.take(news);
    this.#parts.onNews?.(news);
    // A range that ended before the newest update does not change any more.
    const drawn = Number(document.documentElement.dataset.drawnStep ?? -1);
    if (!this.view.range || drawn < this.view.range[1] - 1) this.ask();
  }

  /** @param {import("./liveness.js").Connection} connection */
  #connected(connection) {
    if (connection === "lost" && this.#connection !== "lost") this.#lostAt = this.now;
    this.#connection = connection;
    this.#showLive();
  }

  #showLive() {
    const seen = { connection: this.#connection, state: this.#state, lastSeenAt: this.#lastSeenAt };
    const { kind, text } = liveness({ ...seen, now: this.now, lostAt: this.#lostAt });
    const gone = this.#gone && kind !== "lost";
    document.documentElement.dataset.live = gone ? "stale" : kind;
    document.documentElement.toggleAttribute("data-gone", this.#gone);
    setText(/** @type {Element} */ (byId("live").lastElementChild), gone ? "not found" : text);
    const lost = `The server does not answer since ${clock(this.#lostAt ?? this.now)}. What you see is from then; this page reconnects by itself.`;
    const notice = kind === "lost" ? lost : this.#problem;
    byId("lost").hidden = notice === null;
    if (byId("lost").dataset.text === notice) return;
    byId("lost").dataset.text = notice ?? "";
    fill(byId("lost"), notice, gone && element("a", { href: `${root}/` }, "All runs"));
  }

  #showFollow() {
    const following = this.view.range === null;
    this.#follow.setAttribute("aria-pressed", String(following));
    setText(this.#follow, following ? "Following" : "Follow the newest");
  }

  /** Stop following without a zoom: stay at what is drawn now. */
  #hold() {
    const last = document.documentElement.dataset.drawnStep;
    if (last !== undefined) this.zoom([0, Number(last) + 1]);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "f") this.#follow.click();
  }
}
