/** The form that builds common sentences: a shape, its blanks, and how long it must hold. */

import { element, fill } from "./elements.js";
import { fetchJson } from "./fetching.js";
import { blanks, shapesOf, written } from "./sentences.js";

/** @typedef {import("./sentences.js").Shape} Shape */

export class Builder {
  /** @type {Shape[]} */ #shapes = [];
  #shape = element("select", { id: "shape" }, element("option", { value: "" }, "choose what to watch for…"));
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
    void this.#offer();
  }

  /** The sentence was written by hand: the form does not say the same any more. */
  leave() {
    if (this.#shape.value === "") return;
    this.#shape.value = "";
    this.#choose();
  }

  async #offer() {
    const names = await fetchJson("/api/rules/names").catch(() => null);
    // Without it the sentence can still be written.
    if (names === null) return;
    this.#shapes = shapesOf(names);
    this.#shape.append(...this.#shapes.map(({ title }, i) => element("option", { value: i }, title)));
  }

  #choose() {
    const shape = this.#chosen();
    this.#holds.hidden = !shape;
    this.#filled = shape ? blanks(shape) : {};
    /** @type {(string | HTMLElement)[]} */
    const parts = [];
    for (const part of shape?.parts ?? []) parts.push(...(typeof part === "string" ? [part] : this.#blank(part)));
    fill(this.#parts, ...parts);
    this.#say();
  }

  /**
   * The blank, and behind it what it offers.
   * @param {import("./sentences.js").Blank} blank
   * @returns {HTMLElement[]}
   */
  #blank({ name, kind, value, label, known = [] }) {
    const input = Array.isArray(kind)
      ? element("select", { "aria-label": label }, ...kind.map((word) => element("option", {}, word)))
      : element("input", { "aria-label": label, size: kind === "number" ? 5 : 12, autocomplete: "off" });
    input.value = value;
    if (kind === "number") input.setAttribute("inputmode", "decimal");
    if (known.length) input.setAttribute("list", `known-${name}`);
    input.addEventListener("input", () => {
      this.#filled[name] = input.value;
      this.#say();
    });
    const options = known.map((word) => element("option", { value: word }));
    return known.length ? [input, element("datalist", { id: `known-${name}` }, ...options)] : [input];
  }

  #say() {
    const shape = this.#chosen();
    if (shape) this.#onSentence(written(shape, this.#filled, this.#hold.value));
  }

  #chosen() {
    return this.#shape.value === "" ? undefined : this.#shapes[Number(this.#shape.value)];
  }
}
