/** One alert: what happened where, and what a reader can do about it. It stays the same element while it changes. */

import { AlertPast } from "./alertpast.js";
import { evidence, sinceText, standing, stateText, viewOf } from "./alertstate.js";
import { attempt, keepFocus } from "./attempt.js";
import { element, fill, raisedText, setText } from "./elements.js";
import { root } from "./fetching.js";
import { clock, dated } from "./format.js";
import { Until } from "./until.js";

/** @typedef {import("./alertstate.js").Alert} Alert */

/**
 * @typedef {object} Deeds each answers with the alert as it is then
 * @property {(alert: Alert) => Promise<Alert>} acknowledge
 * @property {(alert: Alert, until: number | null) => Promise<Alert>} mute until then; null: tell of it again
 * @property {() => number} now seconds since the epoch, by the server's clock
 */

export class AlertCard {
  /** @type {Alert} */ #alert;
  #deeds;
  #shown = "";
  #when = "";
  #title = element("h2");
  #severity = element("span", { class: "severity" });
  #state = element("span");
  #mark = element("span", { class: "alert-state" }, element("i", { "aria-hidden": "true" }), this.#state);
  #since = element("span");
  #link = element("a");
  #project = element("span", { class: "note" });
  #told = element("div", { class: "told" });
  #acknowledge = element("button", { type: "button" }, "Acknowledge");
  #unmute = element("button", { type: "button" }, "Unmute");
  #until;
  #opener = element("summary", { class: "button" }, "Mute…");
  #mute;
  #problem = element("p", { class: "bad", role: "alert" });
  #past;
  #details = element("details", { class: "past-box" }, element("summary", {}, "History and deliveries"));

  /**
   * @param {Alert} alert
   * @param {Deeds} deeds
   */
  constructor(alert, deeds) {
    this.#alert = alert;
    this.#deeds = deeds;
    this.#until = new Until(`Mute ${alert.name}`);
    this.#past = new AlertPast(alert);
    const ask = element("form", {}, this.#until.root, element("button", { type: "submit", class: "main" }, "Mute"));
    this.#mute = element("details", { class: "mute" }, this.#opener, ask);
    this.root = element(
      "article",
      { class: "alert", "data-alert": alert.id },
      element("header", {}, this.#title, this.#severity, this.#mark, this.#since),
      element("p", { class: "where" }, this.#link, this.#project),
      this.#told,
      element("div", { class: "alert-tools" }, this.#acknowledge, this.#unmute, this.#mute, this.#problem),
      this.#details,
    );
    this.#details.append(this.#past.root);
    this.#listen(ask);
    this.show(alert);
  }

  /**
   * @param {Alert} alert as it is now
   * @param {string} [when] the sentence of its rule
   */
  show(alert, when = this.#when) {
    const muted = this.#isMuted(alert);
    const text = JSON.stringify([alert, muted, when]);
    if (text === this.#shown) return;
    this.#shown = text;
    this.#alert = alert;
    this.#when = when;
    keepFocus(
      () => this.#fill(alert, muted),
      () => (muted ? this.#unmute : this.#opener),
    );
    if (this.#details.open) void this.#past.load();
  }

  tick() {
    setText(this.#since, sinceText(this.#alert, this.#deeds.now()));
    if (this.#isMuted(this.#alert) === this.#unmute.hidden) this.show(this.#alert);
  }

  /** @param {HTMLFormElement} ask for how long it is muted */
  #listen(ask) {
    this.#acknowledge.addEventListener("click", () =>
      this.#do("It was not acknowledged", () => this.#deeds.acknowledge(this.#alert)),
    );
    this.#unmute.addEventListener("click", () =>
      this.#do("It is still muted", () => this.#deeds.mute(this.#alert, null)),
    );
    this.#mute.addEventListener("toggle", () => this.#mute.open && this.#until.first.focus());
    this.#mute.addEventListener("keydown", ({ key }) => {
      if (key !== "Escape" || !this.#mute.open) return;
      this.#mute.open = false;
      this.#opener.focus();
    });
    ask.addEventListener("submit", (event) => {
      event.preventDefault();
      const until = this.#until.chosen(this.#deeds.now());
      if (until !== null) void this.#do("It was not muted", () => this.#deeds.mute(this.#alert, until));
    });
    this.#details.addEventListener("toggle", () => this.#details.open && void this.#past.load());
  }

  /**
   * @param {string} failure
   * @param {() => Promise<Alert>} send
   */
  async #do(failure, send) {
    const alert = await attempt(this.#problem, failure, send);
    if (alert) this.show(alert);
  }

  /**
   * @param {Alert} alert
   * @param {boolean} muted
   */
  #fill(alert, muted) {
    const { name, rule, severity, run, run_name, project } = alert;
    this.root.dataset.severity = severity;
    this.root.dataset.state = alert.state;
    this.root.toggleAttribute("data-open", alert.open);
    this.#mark.dataset.state = standing(alert);
    if (this.#title.textContent !== name || (rule === null) !== (this.#title.querySelector("a") === null))
      fill(this.#title, rule === null ? name : element("a", { href: `${root}/alerts?rule=${rule}` }, name));
    setText(this.#severity, severity);
    setText(this.#state, stateText(alert));
    setText(this.#link, run_name || run);
    this.#link.href = viewOf(alert, root);
    setText(this.#project, project);
    fill(this.#told, ...told(alert, muted, this.#when));
    this.#acknowledge.hidden = !alert.open || alert.acknowledged_at !== null;
    this.#unmute.hidden = !muted;
    this.#mute.hidden = muted;
    if (muted) this.#mute.open = false;
    setText(this.#since, sinceText(alert, this.#deeds.now()));
  }

  /** @param {Alert} alert */
  #isMuted({ muted_until }) {
    return muted_until !== null && muted_until > this.#deeds.now();
  }
}

/**
 * @param {Alert} alert
 * @param {boolean} muted
 * @param {string} when
 */
function* told(alert, muted, when) {
  if (when) yield element("p", {}, element("code", {}, when));
  const seen = evidence(alert, alert.unit);
  if (seen) yield element("p", { class: "mono evidence" }, ...raisedText(seen));
  if (alert.sentence) yield element("p", {}, alert.sentence);
  const asked = [
    alert.acknowledged_at !== null && `acknowledged at ${clock(alert.acknowledged_at)}`,
    muted && alert.muted_until !== null && `muted until ${dated(alert.muted_until)}`,
  ].filter(Boolean);
  if (asked.length) yield element("p", { class: "note asked" }, asked.join(" · "));
}
