/** Whose lines the charts of a run of several ranks show: a list to choose from. */

import { element } from "./elements.js";

const OF_THE_RUN = "Scale, skips, losses and times of rank 0; what is read out of gradients is of all ranks.";

export class RankChooser {
  #select;
  #shown = "";
  /** @type {HTMLElement} */ #root;

  /**
   * @param {HTMLElement} root hidden while there is nothing to choose
   * @param {(rank: number | null) => void} onChoose null: the lines of the run
   */
  constructor(root, onChoose) {
    this.#root = root;
    this.#select = element("select", {
      id: "rank",
      onchange: () => onChoose(this.#select.value === "" ? null : Number(this.#select.value)),
    });
    root.append(element("label", {}, "Lines of ", this.#select));
  }

  /**
   * @param {number[]} ranks those that have called
   * @param {number | null} chosen
   */
  show(ranks, chosen) {
    // What an address asks for is shown as asked, be there such a rank or not.
    const offered = chosen === null || ranks.includes(chosen) ? ranks : [...ranks, chosen];
    this.#root.hidden = offered.length <= 1 && chosen === null;
    if (String(offered) !== this.#shown) {
      this.#shown = String(offered);
      this.#select.replaceChildren(
        element("option", { value: "", title: OF_THE_RUN }, "the run"),
        ...offered.map((rank) => element("option", { value: rank }, `rank ${rank}`)),
      );
    }
    this.#select.value = chosen === null ? "" : String(chosen);
    this.#select.title = chosen === null ? OF_THE_RUN : "";
  }
}
