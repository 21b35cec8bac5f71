/** One alert: what happened where, and what a reader can do about it. */

import { dated, pastOf } from "./alertpast.js";
import { evidence, sinceText, viewOf } from "./alertstate.js";
import { element, raisedText, setText } from "./elements.js";
import { root } from "./fetching.js";
import { clock } from "./format.js";

/** @typedef {import("./alertstate.js").Alert} Alert */

/** For how long an alert is muted, in seconds. */
const MUTES = [
  { words: "1 hour", seconds: 3600 },
  { words: "8 hours", seconds: 28_800 },
  { words: "1 day", seconds: 86_400 },
  { words: "1 week", seconds: 604_800 },
];

/**
 * @typedef {object} Deeds
 * @property {(alert: Alert) => void} acknowledge
 * @property {(alert: Alert, seconds: number | null) => void} mute for so long from now; null: tell of it again
 */

export class AlertCard {
  /** @type {Alert} */ #alert;
  #since = element("span");
  #past = element("details", {}, element("summary", {}, "History and deliveries"));

  /**
   * @param {Alert} alert
   * @param {Deeds} deeds
   * @param {number} now
   * @param {boolean} [open] whether its past is shown
   */
  constructor(alert, deeds, now, open = false) {
    this.#alert = alert;
    this.root = element(
      "article",
      { class: "alert", "data-severity": alert.severity, "data-state": alert.state, "data-alert": alert.id },
      this.#head(),
      this.#where(),
      ...this.#told(now),
      this.#tools(deeds, now),
      this.#past,
    );
    this.#past.append(...pastOf(alert));
    this.#past.open = open;
    this.tick(now);
  }

  /** Whether its past is shown. */
  get open() {
    return this.#past.open;
  }

  /** @param {number} now */
  tick(now) {
    setText(this.#since, sinceText(this.#alert, now));
  }

  #head() {
    const { name, rule, severity, state } = this.#alert;
    const title = rule === null ? name : element("a", { href: `${root}/alerts?rule=${rule}` }, name);
    const mark = element(
      "span",
      { class: "alert-state", "data-state": state },
      element("i", { "aria-hidden": "true" }),
      state,
    );
    return element(
      "header",
      {},
      element("h2", {}, title),
      element("span", { class: "severity" }, severity),
      mark,
      this.#since,
    );
  }

  #where() {
    const { run, run_name, project } = this.#alert;
    const link = element("a", { href: viewOf(this.#alert, root) }, run_name || run);
    return element("p", { class: "where" }, link, element("span", { class: "note" }, project));
  }

  /** @param {number} now */
  *#told(now) {
    const { sentence, acknowledged_at, muted_until } = this.#alert;
    const seen = evidence(this.#alert);
    if (seen) yield element("p", { class: "mono evidence" }, ...raisedText(seen));
    if (sentence) yield element("p", {}, sentence);
    const asked = [
      acknowledged_at !== null && `acknowledged at ${clock(acknowledged_at)}`,
      isMuted(muted_until, now) && `muted until ${dated(muted_until)}`,
    ].filter(Boolean);
    if (asked.length) yield element("p", { class: "note asked" }, asked.join(" · "));
  }

  /**
   * @param {Deeds} deeds
   * @param {number} now
   */
  #tools(deeds, now) {
    const alert = this.#alert;
    const tools = element("div", { class: "alert-tools" });
    if (alert.open && alert.acknowledged_at === null)
      tools.append(element("button", { type: "button", onclick: () => deeds.acknowledge(alert) }, "Acknowledge"));
    tools.append(isMuted(alert.muted_until, now) ? this.#unmute(deeds) : this.#mute(deeds));
    return tools;
  }

  /** @param {Deeds} deeds */
  #unmute(deeds) {
    return element("button", { type: "button", onclick: () => deeds.mute(this.#alert, null) }, "Unmute");
  }

  /** @param {Deeds} deeds */
  #mute(deeds) {
    const choice = element(
      "select",
      { "aria-label": `Mute ${this.#alert.name}` },
      element("option", { value: "" }, "Mute for…"),
      ...MUTES.map(({ words, seconds }) => element("option", { value: seconds }, words)),
    );
    choice.addEventListener("change", () => choice.value && deeds.mute(this.#alert, Number(choice.value)));
    return choice;
  }
}

/**
 * @param {number | null} until
 * @param {number} now
 * @returns {until is number}
 */
function isMuted(until, now) {
  return until !== null && until > now;
}
