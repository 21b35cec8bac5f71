/** The bell on top of every page: how many alerts fire, on all runs. */

import { setText } from "./elements.js";
import { fetchJson } from "./fetching.js";
import { count } from "./format.js";
import { notify } from "./notifying.js";
import { Refetch } from "./refetch.js";

export class Bell {
  #link;
  #count;
  /** Alerts that were told while this page was open, so that news which repeat them ask for nothing. */
  #told = new Set();
  #refetch = new Refetch(
    () => this.#load(),
    // Whether the server answers is told beside the bell.
    () => undefined,
  );

  /** @param {HTMLElement} link */
  constructor(link) {
    this.#link = link;
    this.#count = /** @type {HTMLElement} */ (link.lastElementChild);
    this.ask();
  }

  /** Look again. */
  ask() {
    this.#refetch.ask();
  }

  /**
   * Whether something is told of an alert that was not told before.
   * @param {import("./live.js").News} news
   */
  take({ alerts }) {
    const anew = alerts.filter(({ key }) => !this.#told.has(key));
    for (const alert of anew) {
      this.#told.add(alert.key);
      notify(alert);
    }
    if (anew.length) this.ask();
    return anew.length > 0;
  }

  async #load() {
    const { open } = await fetchJson("/api/alerts/counts");
    return async () => this.#show(open);
  }

  /** @param {number} firing also those of which it cannot be said now whether they still would */
  #show(firing) {
    this.#link.dataset.firing = String(firing);
    setText(this.#count, firing ? count(firing) : "");
    const words = firing === 1 ? "1 alert fires" : `${firing ? count(firing) : "no"} alerts fire`;
    this.#link.setAttribute("aria-label", `Alerts: ${words}`);
    this.#link.title = words;
  }
}
