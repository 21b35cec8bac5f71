/** The form that builds common sentences: a shape, its blanks, and how long it must hold. */

import { element, fill } from "./elements.js";
import { blanks, SHAPES, written } from "./sentences.js";

/** @typedef {import("./sentences.js").Shape} Shape */

export class Builder {
  #shape = element(
    "select",
    { id: "shape" },
    element("option", { value: "" }, "choose what to watch for…"),
    ...SHAPES.map(({ title }, i) => element("option", { value: i }, title)),
  );
  #parts = element("span", { class: "blanks" });
  #hold = element("input", { id: "hold", size: 9, placeholder: "50 steps", autocomplete: "off" });
  #holds = element("span", { class: "blanks" }, element("label", { for: "hold" }, "for at least"), this.#hold);
  /** @type {Record<string, string>} */ #filled = {};
  #onSentence;

  /** @param {(sentence: string) => void} onSentence the form says something else now */
  constructor(onSentence) {
    this.#onSentence = onSentence;
    const label = element("label", { for: "shape" }, "Build it");
    this.root = element("div", { class: "builder" }, label, this.#shape, this.#parts, this.#holds);
    this.#shape.addEventListener("change", () => this.#choose());
    this.#hold.addEventListener("input", () => this.#say());
    this.#choose();
  }

  /** The sentence was written by hand: the form does not say the same any more. */
  leave() {
    if (this.#shape.value === "") return;
    this.#shape.value = "";
    this.#choose();
  }

  #choose() {
    const shape = this.#chosen();
    this.#holds.hidden = !shape;
    this.#filled = shape ? blanks(shape) : {};
    fill(this.#parts, ...(shape?.parts ?? []).map((part) => (typeof part === "string" ? part : this.#blank(part))));
    this.#say();
  }

  /** @param {import("./sentences.js").Blank} blank */
  #blank({ name, kind, value, label }) {
    const input = Array.isArray(kind)
      ? element("select", { "aria-label": label }, ...kind.map((word) => element("option", {}, word)))
      : element("input", { "aria-label": label, size: kind === "number" ? 5 : 12, autocomplete: "off" });
    input.value = value;
    if (kind === "number") input.setAttribute("inputmode", "decimal");
    input.addEventListener("input", () => {
      this.#filled[name] = input.value;
      this.#say();
    });
    return input;
  }

  #say() {
    const shape = this.#chosen();
    if (shape) this.#onSentence(written(shape, this.#filled, this.#hold.value));
  }

  #chosen() {
    return this.#shape.value === "" ? undefined : SHAPES[Number(this.#shape.value)];
  }
}
