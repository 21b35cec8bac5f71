/**
 * The box that takes a rule's sentence, with what is wrong marked at its place.
 *
 * @typedef {object} Fault
 * @property {string} field
 * @property {string} message
 * @property {number | null} start where in the sentence, null where all of it is meant
 * @property {number | null} end
 */

import { element, fill, setText } from "./elements.js";

export class SentenceBox {
  #input = element("textarea", {
    id: "when",
    rows: 1,
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "off",
    "aria-describedby": "when-fault",
  });
  // Lies under the box with the same letters: it gives the height, and underlines what is wrong.
  #under = element("div", { class: "under", "aria-hidden": "true" });
  #fault = element("p", { class: "bad", id: "when-fault", role: "status" });

  /** @param {() => void} onInput */
  constructor(onInput) {
    this.root = element(
      "div",
      { class: "sentence-box" },
      element("div", { class: "layers-box" }, this.#under, this.#input),
    );
    this.root.append(this.#fault);
    this.#input.addEventListener("input", () => {
      this.show([]);
      onInput();
    });
  }

  get value() {
    return this.#input.value;
  }

  /** @param {string} sentence */
  set value(sentence) {
    this.#input.value = sentence;
    this.show([]);
  }

  /** @param {Fault[]} faults of the sentence as it stands */
  show(faults) {
    const text = this.#input.value;
    const [first] = faults;
    const start = first?.start ?? 0;
    // What is missing at the end is marked behind it.
    const end = Math.max(first?.end ?? text.length, start + 1);
    const marked = first && element("mark", {}, text.slice(start, end) || " ");
    fill(this.#under, text.slice(0, first ? start : undefined), marked, first && text.slice(end), "\u200b");
    setText(this.#fault, first ? first.message : "");
    this.#input.setAttribute("aria-invalid", String(Boolean(first)));
  }
}
