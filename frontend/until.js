/** A choice of how long something holds: for a while from now, or until a day and time. */

import { element, setText } from "./elements.js";

const CHOSEN = "chosen";
const WHILES = [
  { words: "1 hour", seconds: 3600 },
  { words: "8 hours", seconds: 28_800 },
  { words: "1 day", seconds: 86_400 },
  { words: "1 week", seconds: 604_800 },
];

export class Until {
  #choice = element("select");
  #time = element("input", { type: "datetime-local", hidden: true });
  #problem = element("small", { class: "bad", role: "alert" });

  /** @param {string} label what holds so long */
  constructor(label) {
    this.#choice.append(
      ...WHILES.map(({ words, seconds }) => element("option", { value: seconds }, `for ${words}`)),
      element("option", { value: CHOSEN }, "until a day and time…"),
    );
    this.#choice.setAttribute("aria-label", label);
    this.#time.setAttribute("aria-label", `${label} until`);
    this.#choice.addEventListener("change", () => this.#show());
    this.root = element("span", { class: "until" }, this.#choice, this.#time, this.#problem);
  }

  /** Where a reader begins. */
  get first() {
    return this.#choice;
  }

  /**
   * Seconds since the epoch; null where no time to come is chosen, which is said.
   * @param {number} now
   */
  chosen(now) {
    const until =
      this.#choice.value === CHOSEN ? new Date(this.#time.value).getTime() / 1000 : now + Number(this.#choice.value);
    const isToCome = until > now;
    setText(this.#problem, isToCome ? "" : "Choose a day and time to come.");
    return isToCome ? until : null;
  }

  #show() {
    this.#time.hidden = this.#choice.value !== CHOSEN;
    setText(this.#problem, "");
    // Tomorrow at this time is a beginning, in the reader's own zone.
    if (!this.#time.hidden && !this.#time.value) this.#time.value = localText(new Date(Date.now() + 86_400_000));
  }
}

/**
 * As a field for a local day and time takes it.
 * @param {Date} date
 */
export function localText(date) {
  const zoned = new Date(date.getTime() - date.getTimezoneOffset() * 60_000);
  return zoned.toISOString().slice(0, 16);
}
